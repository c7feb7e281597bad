// Publishing one record.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { request, segment } from "./api.js";
import { count } from "./format.js";
import { href } from "./router.js";
import { Field, Notice, Panel, announce, useTask } from "./widgets.js";

/** Read lines such as `trace: abc` as headers. Throws an error with a sentence. */
function parseHeaders(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`A header looks like “trace: abc”, not “${line}”.`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
}

export function Produce({ topic }) {
  const [key, setKey] = useState("");
  const [hasKey, setHasKey] = useState(false);
  const [value, setValue] = useState("");
  const [tombstone, setTombstone] = useState(false);
  const [headers, setHeaders] = useState("");
  const [log, setLog] = useState("");
  const [result, setResult] = useState(null);
  const task = useTask(
    () => {
      const record = { value: tombstone ? null : value };
      if (hasKey) record.key = key;
      const found = parseHeaders(headers);
      if (found.length) record.headers = found;
      const query = log === "" ? "" : `?log=${log}`;
      return request("POST", `topics/${segment(topic.name)}/records${query}`, { body: JSON.stringify(record), type: "application/x-ndjson" });
    },
    (answer) => {
      const [stored] = answer.offsets;
      setResult(stored);
      announce(`Published at offset ${count(stored.offset)}.`);
    },
  );
  const submit = (event) => {
    event.preventDefault();
    setResult(null);
    task.run();
  };
  const needsKey = tombstone && !hasKey;
  return html`<${Panel} title="Produce a record" id="produce">
    <form class="form" onSubmit=${submit}>
      <div class="check"><input type="checkbox" id="has-key" checked=${hasKey} onChange=${(event) => setHasKey(event.target.checked)} /><label for="has-key">With a key</label></div>
      ${hasKey && html`<${Field} label="Key">${(attributes) => html`<input ...${attributes} class="mono" spellcheck=${false} autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} />`}<//>`}
      <${Field} label="Value">
        ${(attributes) => html`<textarea ...${attributes} rows="9" spellcheck=${false} disabled=${tombstone} value=${tombstone ? "" : value} onInput=${(event) => setValue(event.target.value)}></textarea>`}
      <//>
      <div class="check"><input type="checkbox" id="tombstone" checked=${tombstone} onChange=${(event) => setTombstone(event.target.checked)} /><label for="tombstone">No value: a tombstone, which says that the key is deleted</label></div>
      <${Field} label="Headers" hint="One per line, such as trace: abc">
        ${(attributes) => html`<textarea ...${attributes} rows="2" spellcheck=${false} value=${headers} onInput=${(event) => setHeaders(event.target.value)}></textarea>`}
      <//>
      <${Field} label="Log" hint="A record with a key goes to the log of its key, unless you choose another one.">
        ${(attributes) => html`<select ...${attributes} value=${log} onChange=${(event) => setLog(event.target.value)}>
          <option value="">Chosen by the broker</option>
          ${topic.logs.map((each) => html`<option key=${each.log} value=${each.log}>${each.log}</option>`)}
        </select>`}
      <//>
      ${task.error && html`<${Notice} kind="bad" urgent>${task.error}<//>`}
      ${result && html`<${Notice} kind="good">Published at offset ${count(result.offset)} of log ${result.log}. <a href=${href(["topics", topic.name, "records"], { log: result.log })}>See the newest records</a><//>`}
      <div class="actions">
        <button type="submit" class="primary" disabled=${task.busy || needsKey}>${task.busy ? "Publishing…" : "Publish"}</button>
        ${needsKey && html`<span class="muted">A tombstone needs a key.</span>`}
      </div>
    </form>
  <//>`;
}
