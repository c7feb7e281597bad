// What operators do to a topic, each with a dialog that names it.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { request, segment } from "./api.js";
import { count } from "./format.js";
import { Confirm, Dialog, Field, announce, useTask } from "./widgets.js";

const path = (topic) => `topics/${segment(topic)}`;

/** Read lines such as `retention.ms = 1000` as settings. Throws an error with a sentence. */
export function parseSettings(text) {
  const settings = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`A setting looks like retention.ms=86400000, not “${line}”.`);
    settings[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return settings;
}

/** Write a topic's own settings, one a line. */
const formatSettings = (settings) => settings.filter((each) => each.is_own).map((each) => `${each.name}=${each.value}`).join("\n");

/** Return the changes from a topic's own settings to others: null resets one. */
function settingChanges(topic, wanted) {
  const own = topic.settings.filter((each) => each.is_own).map((each) => [each.name, null]);
  return { ...Object.fromEntries(own), ...wanted };
}

function SettingsField({ value, onInput }) {
  return html`<${Field} label="Settings" hint="One per line, such as retention.ms=86400000 or retention.bytes=1000000. Without any, those of the broker apply.">
    ${(attributes) => html`<textarea ...${attributes} rows="4" spellcheck=${false} value=${value} onInput=${(event) => onInput(event.target.value)}></textarea>`}
  <//>`;
}

export function CreateTopic({ may, onClose }) {
  const [name, setName] = useState("");
  const [logs, setLogs] = useState("1");
  const [settings, setSettings] = useState("");
  const task = useTask(
    () => request("POST", "topics", { body: { name, log_count: Number(logs), settings: parseSettings(settings) } }),
    () => {
      announce(`The topic ${name} was created.`);
      onClose(name);
    },
  );
  const refused = name && !may(name) ? "You may not administer a topic of this name." : "";
  return html`<${Dialog} title="Create a topic" verb="Create" onClose=${() => onClose("")} onSubmit=${task.run} busy=${task.busy}
      error=${task.error} disabled=${!name || Boolean(refused) || !(Number(logs) > 0)}>
    <${Field} label="Name" error=${refused} hint="Letters, digits, full stops, hyphens and underscores suit every client.">
      ${(attributes) => html`<input ...${attributes} autocomplete="off" spellcheck=${false} value=${name} onInput=${(event) => setName(event.target.value)} />`}
    <//>
    <${Field} label="Logs" hint="Kafka's clients call them partitions. There can be more later, but not fewer.">
      ${(attributes) => html`<input ...${attributes} type="number" min="1" max="1000" value=${logs} onInput=${(event) => setLogs(event.target.value)} />`}
    <//>
    <${SettingsField} value=${settings} onInput=${setSettings} />
  <//>`;
}

export function ChangeTopic({ topic, onClose }) {
  const [logs, setLogs] = useState(String(topic.log_count));
  const [settings, setSettings] = useState(formatSettings(topic.settings));
  const task = useTask(
    () => {
      const body = { settings: settingChanges(topic, parseSettings(settings)) };
      if (Number(logs) !== topic.log_count) body.log_count = Number(logs);
      return request("PATCH", path(topic.name), { body });
    },
    () => {
      announce(`The topic ${topic.name} was changed.`);
      onClose(true);
    },
  );
  return html`<${Dialog} title=${html`Change <code class="break">${topic.name}</code>`} verb="Change" onClose=${() => onClose(false)}
      onSubmit=${task.run} busy=${task.busy} error=${task.error} disabled=${!(Number(logs) >= topic.log_count)}>
    <${Field} label="Logs" hint="More logs change which log the records of a key go to, from then on.">
      ${(attributes) => html`<input ...${attributes} type="number" min=${topic.log_count} max="1000" value=${logs} onInput=${(event) => setLogs(event.target.value)} />`}
    <//>
    <${SettingsField} value=${settings} onInput=${setSettings} />
  <//>`;
}

export function DeleteTopic({ topic, onClose }) {
  return html`<${Confirm} title=${html`Delete the topic <code class="break">${topic.name}</code>?`} verb="Delete the topic" mustType=${topic.name}
      action=${() => request("DELETE", path(topic.name))} done=${`The topic ${topic.name} was deleted.`} onClose=${onClose}>
    Its ${count(topic.records)} records are deleted with it, for every client. This cannot be undone.
  <//>`;
}

export function DeleteRecords({ topic, onClose }) {
  const [log, setLog] = useState("0");
  const found = topic.logs[Number(log)];
  const [before, setBefore] = useState("");
  const offset = Number(before);
  const valid = before !== "" && Number.isInteger(offset) && offset > found.start_offset && offset <= found.end_offset;
  const task = useTask(
    () => request("DELETE", `${path(topic.name)}/records?log=${log}&before=${offset}`),
    () => {
      announce(`Records of ${topic.name} were deleted.`);
      onClose(true);
    },
  );
  const gone = valid ? offset - found.start_offset : 0;
  const choose = (event) => {
    setLog(event.target.value);
    setBefore(""); // an offset of another log
  };
  return html`<${Dialog} title=${html`Delete records of <code class="break">${topic.name}</code>`} danger
      verb=${gone ? `Delete ${count(gone)} ${gone === 1 ? "record" : "records"}` : "Delete records"}
      onClose=${() => onClose(false)} onSubmit=${task.run} busy=${task.busy} error=${task.error} disabled=${!valid}>
    <${Field} label="Log">
      ${(attributes) => html`<select ...${attributes} value=${log} onChange=${choose}>
        ${topic.logs.map((each) => html`<option key=${each.log} value=${each.log}>${each.log}</option>`)}
      </select>`}
    <//>
    <${Field} label="Before offset" hint=${`The log has the offsets ${count(found.start_offset)} to ${count(found.end_offset)}. The end deletes all records.`}
        error=${before !== "" && !valid ? `Expected a number from ${found.start_offset + 1} to ${found.end_offset}.` : ""}>
      ${(attributes) => html`<input ...${attributes} inputmode="numeric" value=${before} onInput=${(event) => setBefore(event.target.value.trim())} />`}
    <//>
    <p>Deleted records are gone for every client. This cannot be undone.</p>
  <//>`;
}
