// What pages are made of: headings, notices, tiles, dialogs, times and sizes.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import * as format from "./format.js";

const ICONS = {
  overview: "M2.5 8.5 8 3l5.5 5.5M4 7.5V13h8V7.5",
  topics: "M2.5 4h11M2.5 8h11M2.5 12h7",
  groups: "M5.5 7a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM2 13c0-2 1.5-3.5 3.5-3.5S9 11 9 13M11 7.5a1.7 1.7 0 1 0 0-3.4M11.5 9.6c1.6.2 2.5 1.6 2.5 3.4",
  storage: "M2.5 4c0-1 2.5-1.8 5.5-1.8s5.5.8 5.5 1.8-2.5 1.8-5.5 1.8S2.5 5 2.5 4ZM2.5 4v8c0 1 2.5 1.8 5.5 1.8s5.5-.8 5.5-1.8V4M2.5 8c0 1 2.5 1.8 5.5 1.8s5.5-.8 5.5-1.8",
  brokers: "M2.5 3h11v4h-11ZM2.5 9h11v4h-11ZM5 5h.1M5 11h.1M8 5h3M8 11h3",
  settings: "M2.5 4.5h6M12 4.5h1.5M2.5 11.5H4M7.5 11.5h6M10.2 6.2a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.4ZM5.8 13.2a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.4Z",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.5 10.5l3 3",
  bad: "M8 2 14.5 13.5h-13ZM8 6.5v3M8 11.5v.1",
  warn: "M8 2 14.5 13.5h-13ZM8 6.5v3M8 11.5v.1",
  good: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM5.5 8.2l1.8 1.8 3.4-3.8",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 7.5V11M8 5v.1",
  theme: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 2v12",
  close: "M4 4l8 8M12 4l-8 8",
  more: "M3 8h.1M8 8h.1M13 8h.1",
};

/** A small drawing beside a text that says the same. */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;
}

let announcing = 0;

/** Say something to users of screen readers, once. */
export function announce(text) {
  const region = document.getElementById("announcements");
  clearTimeout(announcing);
  region.textContent = "";
  announcing = setTimeout(() => (region.textContent = text), 60);
}

/** The heading of a page. It takes the focus when the page is opened, so that a screen reader reads it. */
export function Head({ title, sub, crumbs, children }) {
  const heading = useRef();
  useEffect(() => {
    document.title = `${title} – Dafka`;
    if (document.documentElement.dataset.navigated) heading.current?.focus({ preventScroll: true });
  }, [title]);
  return html`<div class="head">
    <div>
      ${crumbs && html`<nav class="crumbs" aria-label="Breadcrumb">${crumbs}</nav>`}
      <h1 tabindex="-1" ref=${heading}>${title}</h1>
      ${sub && html`<p class="sub">${sub}</p>`}
    </div>
    ${children && html`<div class="actions">${children}</div>`}
  </div>`;
}

/** A message within a page. Urgent ones are read out. */
export function Notice({ kind = "info", urgent = false, children }) {
  return html`<div class=${`notice ${kind}`} role=${urgent ? "alert" : undefined}><${Icon} name=${kind} /><div>${children}</div></div>`;
}

/** The text in place of rows. */
export function Empty({ title, children, actions }) {
  return html`<div class="empty">
    <h2>${title}</h2>
    ${children && html`<p>${children}</p>`}
    ${actions && html`<div class="actions">${actions}</div>`}
  </div>`;
}

/** What a page shows instead of its contents: nothing yet, or why there is nothing. */
export function Waiting({ view, what, bare }) {
  if (view.error) return html`<${Notice} kind="bad" urgent>${view.error.message}<//>`;
  return html`<div class=${bare ? "" : "panel"} aria-busy="true">
    <div class=${bare ? "" : "body"}>
      <p class="unseen">Loading ${what}</p>
      <div class="skeleton"></div>
      <br />
      <div class="skeleton"></div>
    </div>
  </div>`;
}

/** A panel with a heading. */
export function Panel({ title, note, id, children, bare = false }) {
  return html`<section class="panel" aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${title}</h2>
      ${note && html`<div class="muted">${note}</div>`}
    </header>
    ${bare ? children : html`<div class="body">${children}</div>`}
  </section>`;
}

/** Figures in a row: pairs of a name and a value. */
export function Tiles({ label, items }) {
  return html`<dl class="tiles" aria-label=${label}>
    ${items.map(
      ([name, value, detail]) => html`<div key=${name}>
        <dt>${name}</dt>
        <dd>${value}${detail && html` <small>${detail}</small>`}</dd>
      </div>`,
    )}
  </dl>`;
}

/** A point in time, as an age; the title has the date. */
export function Ago({ ms }) {
  if (ms == null || ms < 0) return html`<span class="muted">–</span>`;
  return html`<time dateTime=${new Date(ms).toISOString()} title=${format.time(ms)}>${format.age(ms)}</time>`;
}

let fields = 0;

/** Return an id that no other element has. */
export function useId(prefix = "id") {
  const id = useRef(null);
  id.current ??= `${prefix}-${(fields += 1)}`;
  return id.current;
}

/** A field with its label, a hint and an error. `children` gets the attributes of the control. */
export function Field({ label, hint, error, children }) {
  const id = useId("field");
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ");
  const attributes = { id, "aria-describedby": described || undefined, "aria-invalid": error ? "true" : undefined };
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children(attributes)}
    ${hint && html`<span class="hint" id=${`${id}-hint`}>${hint}</span>`}
    ${error && html`<span class="error" id=${`${id}-error`}>${error}</span>`}
  </div>`;
}

/** A dialog over the page. It gives the focus back to the control that opened it. */
export function Dialog({ title, onClose, onSubmit, busy, error, verb, danger, disabled, children, footer }) {
  const dialog = useRef();
  const id = useId("dialog");
  useLayoutEffect(() => {
    const opener = document.activeElement;
    const element = dialog.current;
    element.showModal();
    return () => {
      element.close();
      if (opener?.isConnected) opener.focus();
      else document.querySelector("main h1")?.focus();
    };
  }, []);
  const submit = (event) => {
    event.preventDefault();
    if (!busy && !disabled) onSubmit();
  };
  const cancel = (event) => {
    event.preventDefault();
    if (!busy) onClose();
  };
  return html`<dialog ref=${dialog} aria-labelledby=${id} onCancel=${cancel}>
    <form onSubmit=${submit} noValidate>
      <h2 class="dialog-head" id=${id}>${title}</h2>
      <div class="dialog-body">
        ${children}
        ${error && html`<div class="bad" role="alert">${error}</div>`}
      </div>
      <div class="dialog-foot">
        ${footer}
        <button type="button" onClick=${onClose} disabled=${busy}>Cancel</button>
        <button type="submit" class=${danger ? "primary danger" : "primary"} disabled=${busy || disabled}>
          ${busy ? "One moment…" : verb}
        </button>
      </div>
    </form>
  </dialog>`;
}

/** Ask before something is done that cannot be taken back. `mustType` is the name to be typed first. */
export function Confirm({ title, verb, mustType, action, done, onClose, children }) {
  const [typed, setTyped] = useState("");
  // The page can notice what was done before the answer comes, and show this no more: that ends it all the same.
  const task = useTask(async () => {
    const result = await action();
    announce(done);
    onClose(true, result);
  });
  const ready = !mustType || typed === mustType;
  return html`<${Dialog} title=${title} verb=${verb} danger onClose=${() => onClose(false)} onSubmit=${task.run}
      busy=${task.busy} error=${task.error} disabled=${!ready}>
    <div>${children}</div>
    ${mustType &&
    html`<${Field} label=${html`Type <code class="break">${mustType}</code> to confirm`}>
      ${(attributes) =>
        html`<input ...${attributes} value=${typed} autocomplete="off" spellcheck=${false} onInput=${(event) => setTyped(event.target.value)} />`}
    <//>`}
  <//>`;
}

/** Run something asynchronous once at a time, with its error as a sentence. `done` is not called if the control has gone. */
export function useTask(action, done = () => {}) {
  const [state, setState] = useState({ busy: false, error: "" });
  const alive = useRef(true);
  useEffect(() => () => (alive.current = false), []);
  const run = async () => {
    setState({ busy: true, error: "" });
    try {
      const result = await action();
      if (!alive.current) return;
      setState({ busy: false, error: "" });
      done(result);
    } catch (error) {
      if (alive.current) setState({ busy: false, error: error.message });
    }
  };
  return { ...state, run };
}

/** The search field of a page; `/` puts the focus there. */
export function Search({ label, value, onInput, hint }) {
  const id = useId("search");
  return html`<div class="search">
    <label class="unseen" for=${id}>${label}</label>
    <${Icon} name="search" />
    <input id=${id} type="search" data-search value=${value} placeholder=${hint ?? label} autocomplete="off"
      spellcheck=${false} onInput=${(event) => onInput(event.target.value)} />
    ${!value && html`<kbd aria-hidden="true">/</kbd>`}
  </div>`;
}
