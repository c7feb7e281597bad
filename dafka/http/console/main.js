// The frame around all pages: navigation, connection, session, theme and keyboard shortcuts.
import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, request, whenUnauthenticated } from "./api.js";
import { openConnection, useConnection } from "./live.js";
import { href, useRoute } from "./router.js";
import { Head, Icon, Notice, announce } from "./widgets.js";
import { Overview } from "./pages/overview.js";

// The first page is here at once; the others are loaded when they are opened, or when there is time.
const PAGES = {
  topics: () => import("./pages/topics.js").then((module) => module.Topics),
  topic: () => import("./pages/topic.js").then((module) => module.TopicPage),
  groups: () => import("./pages/groups.js").then((module) => module.Groups),
  group: () => import("./pages/group.js").then((module) => module.GroupPage),
  brokers: () => import("./pages/brokers.js").then((module) => module.BrokersPage),
  storage: () => import("./pages/storage.js").then((module) => module.StoragePage),
  settings: () => import("./pages/settings.js").then((module) => module.SettingsPage),
  login: () => import("./pages/login.js").then((module) => module.Login),
};

const NAVIGATION = [
  ["overview", "Overview", []],
  ["topics", "Topics", ["topics"]],
  ["groups", "Groups", ["groups"]],
  ["brokers", "Brokers", ["brokers"]],
  ["storage", "Storage", ["storage"]],
  ["settings", "Settings", ["settings"]],
];

const FOR_ADMINISTRATORS = ["brokers", "storage", "settings"];

/** Return the name of the page at an address, or null if there is none. */
function pageOf([first, second]) {
  if (!first) return "overview";
  if (first === "topics") return second === undefined ? "topics" : "topic";
  if (first === "groups") return second === undefined ? "groups" : "group";
  return ["brokers", "storage", "settings", "login"].includes(first) ? first : null;
}

/** Return the key of a page. One about another topic or group, or one that is opened again, keeps nothing of the one before. */
const keyOf = (name, { segments, opened }) => `${name} ${name === "topic" || name === "group" ? segments[1] : opened}`;

/** A page, once its module is loaded. */
function Page({ name, ...props }) {
  const [loaded, setLoaded] = useState({ name: "overview", component: Overview, error: null });
  useEffect(() => {
    if (!PAGES[name]) {
      setLoaded({ name, component: Overview, error: null });
      return undefined;
    }
    let current = true;
    PAGES[name]().then(
      (component) => current && setLoaded({ name, component, error: null }),
      (error) => current && setLoaded({ name, component: null, error }),
    );
    return () => (current = false);
  }, [name]);
  const [failure] = useErrorBoundary((error) => console.error(error));
  if (failure) return html`<${Notice} kind="bad" urgent>This page has failed: ${failure.message} Load the console again.<//>`;
  if (loaded.name !== name) return null;
  if (loaded.error) return html`<${Notice} kind="bad" urgent>This page could not be loaded. Load the console again.<//>`;
  return html`<${loaded.component} ...${props} />`;
}

const THEMES = { system: "System colours", light: "Light", dark: "Dark" };

function ThemeSwitch() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const choose = (event) => {
    const next = event.target.value;
    setTheme(next);
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("dafka.theme", next);
    } catch {
      // The choice then lasts as long as the page.
    }
    window.dispatchEvent(new Event("themechange"));
  };
  return html`<label class="theme">
    <span class="unseen">Colours</span>
    <select value=${theme} onChange=${choose}>
      ${Object.entries(THEMES).map(([name, text]) => html`<option key=${name} value=${name}>${text}</option>`)}
    </select>
  </label>`;
}

const LINK_STATES = { connecting: ["warn", "Connecting"], open: ["good", "Connected"], lost: ["bad", "Connection lost"] };

function Side({ active, session, connection, onLogOut }) {
  const [shown, setShown] = useState(false);
  const [kind, text] = LINK_STATES[connection];
  useEffect(() => setShown(false), [active]);
  return html`<header class="side">
    <a class="brand" href="#/"><img src="console/icon.svg" alt="" width="24" height="24" />Dafka</a>
    <nav aria-label="Pages">
      <ul class="nav">
        ${NAVIGATION.filter(([name]) => session?.is_administrator || !FOR_ADMINISTRATORS.includes(name)).map(
          ([name, title, segments]) => html`<li key=${name}>
            <a href=${href(segments)} aria-current=${active === name ? "page" : undefined}><${Icon} name=${name} />${title}</a>
          </li>`,
        )}
        <li class="only-phone">
          <button class="quiet more" aria-expanded=${shown ? "true" : "false"} aria-controls="side-foot"
            onClick=${() => setShown(!shown)}><${Icon} name="more" />More</button>
        </li>
      </ul>
    </nav>
    <div class=${shown ? "foot shown" : "foot"} id="side-foot">
      <div class="link-state"><span class=${`dot ${kind}`}></span>${text}</div>
      ${session?.user &&
      html`<div class="who">
        <span title=${session.user}>${session.user}</span>
        <button class="small" onClick=${onLogOut}>Log out</button>
      </div>`}
      <${ThemeSwitch} />
    </div>
  </header>`;
}

function Unknown() {
  return html`<${Head} title="No such page" /><${Notice}>There is no page at this address. <a href="#/">Go to the overview.</a><//>`;
}

function App() {
  const route = useRoute();
  const connection = useConnection();
  const [session, setSession] = useState(null);
  const [error, setError] = useState(null);
  const refresh = () =>
    get("session").then(
      (found) => {
        setSession(found);
        setError(null);
        if (!found.must_log_in) openConnection();
      },
      (failure) => setError(failure),
    );
  useEffect(() => {
    whenUnauthenticated(() => setSession((before) => ({ ...before, must_log_in: true, user: null })));
    refresh();
  }, []);
  useEffect(() => {
    if (!error) return undefined;
    const again = setTimeout(refresh, 2000);
    return () => clearTimeout(again);
  }, [error]);
  useEffect(() => {
    if (connection === "lost") announce("The connection to the broker is lost. It is tried again.");
  }, [connection]);
  const logOut = async () => {
    await request("DELETE", "session").catch(() => null);
    await refresh();
  };
  const name = pageOf(route.segments);
  const needsLogin = session !== null && session.must_log_in;
  const active = { topic: "topics", group: "groups" }[name] ?? name;
  let page = null;
  if (error) page = html`<${Head} title="No connection" /><${Notice} kind="bad" urgent>${error.message} The console tries again by itself.<//>`;
  else if (needsLogin) page = html`<${Page} name="login" onDone=${refresh} session=${session} />`;
  else if (session && name === null) page = html`<${Unknown} />`;
  else if (session) page = html`<${Page} name=${name} key=${keyOf(name, route)} route=${route} session=${session} />`;
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the contents</a>
    <div class=${needsLogin ? "alone" : "frame"}>
      ${!needsLogin && html`<${Side} active=${active} session=${session} connection=${connection} onLogOut=${logOut} />`}
      <div>
        <main id="main" tabindex="-1">
          ${!needsLogin &&
          connection === "lost" &&
          html`<div class="lost" key="lost"><span class="dot warn"></span>The connection to the broker is lost. What you see may be old; the console connects again by itself.</div>`}
          ${page}
        </main>
      </div>
    </div>
  `;
}

function skip(event) {
  event.preventDefault();
  const main = document.getElementById("main");
  (main.querySelector("h1") ?? main).focus();
}

window.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog")) return;
  const search = document.querySelector("[data-search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
});

render(html`<${App} />`, document.getElementById("app"));
