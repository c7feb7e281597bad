// What operators do to a group, each with a dialog that names it.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, request, segment } from "./api.js";
import { localInput } from "./format.js";
import { Confirm, Dialog, Field, announce, useTask } from "./widgets.js";

const TARGETS = { earliest: "The oldest records", latest: "The end", time: "A time", offset: "An offset" };

/** Return the new offsets of a topic's logs as the API takes them. */
async function changesFor(topic, target, value) {
  if (target === "time") return { topic, to: { time: new Date(value).getTime() } };
  if (target !== "offset") return { topic, to: target };
  const { logs } = await get(`topics/${segment(topic)}`);
  const nearest = (each) => Math.min(Math.max(Number(value), each.start_offset), each.end_offset);
  return { topic, offsets: Object.fromEntries(logs.map((each) => [each.log, nearest(each)])) };
}

export function ResetOffsets({ group, name, onClose }) {
  const topics = [...new Set(group.offsets.map((each) => each.topic))];
  const [topic, setTopic] = useState(topics[0]);
  const [target, setTarget] = useState("earliest");
  const [value, setValue] = useState("");
  const task = useTask(
    async () => request("PUT", `groups/${segment(name)}/offsets`, { body: await changesFor(topic, target, value) }),
    () => {
      announce(`The offsets of ${name} were reset.`);
      onClose(true);
    },
  );
  const chooseTopic = (event) => {
    setTopic(event.target.value);
    if (target === "offset") setValue(""); // an offset of another topic
  };
  const choose = (event) => {
    setTarget(event.target.value);
    setValue(event.target.value === "time" ? localInput(Date.now() - 3_600_000) : "");
  };
  const valid = target === "time" ? value !== "" : target !== "offset" || /^\d+$/.test(value);
  return html`<${Dialog} title=${html`Reset the offsets of <code class="break">${name}</code>`} danger verb="Reset the offsets"
      onClose=${() => onClose(false)} onSubmit=${task.run} busy=${task.busy} error=${task.error} disabled=${!valid}>
    <${Field} label="Topic">
      ${(attributes) => html`<select ...${attributes} value=${topic} onChange=${chooseTopic}>
        ${topics.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
      </select>`}
    <//>
    <${Field} label="Read next">
      ${(attributes) => html`<select ...${attributes} value=${target} onChange=${choose}>
        ${Object.entries(TARGETS).map(([each, text]) => html`<option key=${each} value=${each}>${text}</option>`)}
      </select>`}
    <//>
    ${target === "time" && html`<${Field} label="Time">${(attributes) => html`<input ...${attributes} type="datetime-local" step="1" value=${value} onInput=${(event) => setValue(event.target.value)} />`}<//>`}
    ${target === "offset" && html`<${Field} label="Offset" hint="The same in each log, or the nearest offset that it has.">${(attributes) => html`<input ...${attributes} inputmode="numeric" value=${value} onInput=${(event) => setValue(event.target.value.trim())} />`}<//>`}
    <p>Consumers of the group read records again, or leave some out, when they return.</p>
  <//>`;
}

export function DeleteGroup({ name, onClose }) {
  return html`<${Confirm} title=${html`Delete the group <code class="break">${name}</code>?`} verb="Delete the group" mustType=${name}
      action=${() => request("DELETE", `groups/${segment(name)}`)} done=${`The group ${name} was deleted.`} onClose=${onClose}>
    How far it has read is forgotten. Its topics and their records stay.
  <//>`;
}
