// The settings that hold, without secrets.
import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import * as format from "../format.js";
import { useView } from "../live.js";
import { Empty, Head, Notice, Panel, Search, Waiting } from "../widgets.js";

/** Return a value in a larger unit, if its name says in which unit it is. */
function readable({ name, value }) {
  if (typeof value !== "number" || value < 1000) return "";
  if (/_bytes(_|$)/.test(name)) return format.bytes(value);
  return name.endsWith("_ms") ? format.duration(value) : "";
}

const shownValue = (value) => (Array.isArray(value) ? value.join(", ") || "none" : value === "" || value === null ? "not set" : String(value));

/** Let a name be broken behind its underscores. */
const breakable = (name) => name.split("_").map((part, index) => (index ? html`_<wbr />${part}` : part));

function Section({ section }) {
  return html`<${Panel} title=${`[${section.name}]`} id=${`section-${section.name}`} bare>
    <div class="scroll" tabindex="0" role="group" aria-label=${`Settings of ${section.name}`}>
      <table class="settings">
        <thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col" class="wide">What it does</th></tr></thead>
        <tbody>
          ${section.settings.map(
            (each) => html`<tr key=${each.name}>
              <th scope="row" class="mono">${breakable(each.name)}</th>
              <td class="mono break">
                <span class=${each.value === "" || each.value === null ? "muted" : ""}>${shownValue(each.value)}</span>
                ${readable(each) && html` <span class="muted readable">${readable(each)}</span>`}
                ${!each.is_default && html` <span class="tag warn">changed</span>`}
              </td>
              <td class="muted wide">${each.description}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}

export function SettingsPage() {
  const view = useView("settings", { intervalMs: 10_000 });
  const [filter, setFilter] = useState("");
  const [changed, setChanged] = useState(false);
  if (!view.data) return html`<${Head} title="Settings" /><${Waiting} view=${view} what="the settings" />`;
  const wanted = filter.toLowerCase();
  const sections = view.data.sections
    .map((section) => ({
      ...section,
      settings: section.settings.filter(
        (each) => (!changed || !each.is_default) && `${section.name} ${each.name} ${each.description}`.toLowerCase().includes(wanted),
      ),
    }))
    .filter((section) => section.settings.length);
  return html`<${Head} title="Settings" sub="As this broker runs with them. They are changed in its configuration file, its environment and its options." />
    <div class="tools">
      <${Search} label="Filter settings" value=${filter} onInput=${setFilter} />
      <div class="check"><input type="checkbox" id="only-changed" checked=${changed} onChange=${(event) => setChanged(event.target.checked)} /><label for="only-changed">Only those that differ from the default</label></div>
    </div>
    ${view.error && html`<${Notice} kind="bad">${view.error.message}<//>`}
    ${sections.length ? sections.map((section) => html`<${Section} key=${section.name} section=${section} />`) : html`<div class="panel"><${Empty} title="No setting matches" /></div>`}`;
}
