// A topic: its records, its logs, its partitions and its settings, each under a tab.
import { html, useEffect, useState } from "../vendor/htm-preact-3.1.1.js";
import { may, segment } from "../api.js";
import { brief, bytes, count, plural } from "../format.js";
import { useHistory, useView } from "../live.js";
import { href, leave } from "../router.js";
import { Epochs } from "../epochs.js";
import { Records } from "../records.js";
import { Produce } from "../produce.js";
import { ChangeTopic, DeleteRecords, DeleteTopic } from "../topic_dialogs.js";
import { Ago, Empty, Head, Notice, Panel, Tiles, Waiting } from "../widgets.js";

// The newest record of a log has to be read to know its time.
const TIMED_LOGS_MAX = 32;

const TABS = [
  ["records", "Records", "read"],
  ["logs", "Logs", null],
  ["epochs", "Epochs", null],
  ["partitions", "Partitions", null],
  ["settings", "Settings", null],
];

const sum = (logs, value) => logs.reduce((total, each) => total + (value(each) ?? 0), 0);

/** Add to a topic what all its logs have together. */
function total(topic) {
  const stamps = topic.logs.map((each) => each.last_timestamp).filter((each) => each != null && each >= 0);
  return {
    ...topic,
    records: topic.record_count,
    end: sum(topic.logs, (each) => each.end_offset),
    bytes: sum(topic.logs, (each) => each.bytes),
    last_timestamp: stamps.length ? Math.max(...stamps) : null,
  };
}

/** The replicas of a log; those that lack something are named. */
function InSync({ log }) {
  if (!log.in_sync) return html`<span class="muted">not known</span> of ${log.replicas.join(", ")}`;
  const lacking = log.replicas.filter((each) => !log.in_sync.includes(each));
  return html`${log.in_sync.join(", ")}${lacking.length > 0 && html` <span class="warn">without ${lacking.join(", ")}</span>`}`;
}

function Logs({ topic }) {
  return html`<${Panel} title="Logs" id="logs" note="The order that clients read: offsets never change" bare>
    <div class="scroll" tabindex="0" role="group" aria-label="Logs">
      <table>
        <thead>
          <tr>
            <th scope="col">Log</th>
            <th scope="col" class="number">Start</th>
            <th scope="col" class="number">End</th>
            <th scope="col" class="number">Records</th>
            <th scope="col" class="number wide">Size</th>
            <th scope="col" class="number wide">Newest record</th>
            <th scope="col">Leader</th>
            <th scope="col">In sync</th>
          </tr>
        </thead>
        <tbody>
          ${topic.logs.map(
            (each) => html`<tr key=${each.log}>
              <th scope="row"><a href=${href(["topics", topic.name, "records"], { log: each.log })}>${each.log}</a></th>
              <td class="number">${count(each.start_offset)}</td>
              <td class="number">${count(each.end_offset)}</td>
              <td class="number">${count(each.end_offset - each.start_offset)}</td>
              <td class="number wide">${bytes(each.bytes)}</td>
              <td class="number wide"><${Ago} ms=${each.last_timestamp} /></td>
              <td>${each.leader == null ? html`<span class="tag bad">None</span>` : each.leader}</td>
              <td><${InSync} log=${each} /></td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}

function Holder({ holder }) {
  const behind = holder.lag == null ? html`<span class="muted">not known</span>` : holder.lag === 0 ? html`<span class="good">level</span>` : html`<span class="warn">${plural(holder.lag, "record")} behind</span>`;
  return html`<div class="holder"><span class="mono" title=${holder.store}>${holder.is_self ? "this broker" : holder.store.slice(0, 8)}</span> ${behind}</div>`;
}

/** A topic whose name only nodes can use: it has partitions, and no logs. */
function NodeTopic({ topic, crumbs }) {
  return html`<${Head} title=${topic.name} crumbs=${crumbs} sub=${plural(topic.records, "record")} />
    <${Notice}>Only nodes can use a topic of this name, so it has no logs. The command <code>dafka consume</code> shows its records.<//>
    <${Partitions} topic=${topic} />`;
}

function Partitions({ topic }) {
  const view = useView(`topics/${segment(topic.name)}/partitions`);
  if (!view.data) return html`<${Waiting} view=${view} what="partitions" />`;
  const { partitions } = view.data;
  if (!partitions.length) return html`<div class="panel"><${Empty} title="No partitions yet">Each producer of records has a partition of its own.<//></div>`;
  return html`<${Panel} title="Partitions" id="partitions" note="One producer's records, in its own numbering" bare>
    <div class="scroll" tabindex="0" role="group" aria-label="Partitions">
      <table>
        <thead>
          <tr>
            <th scope="col">Producer</th>
            <th scope="col" class="number">Stored here</th>
            <th scope="col" class="number">Producer's end</th>
            <th scope="col">Stores behind it</th>
            <th scope="col" class="number wide">Size</th>
          </tr>
        </thead>
        <tbody>
          ${partitions.map(
            (each) => html`<tr key=${each.address}>
              <th scope="row" class="mono break">${each.address}${each.is_own && html` <span class="tag">clients of this broker</span>`}</th>
              <td class="number">${count(each.earliest_sequence)} to ${count(each.end_sequence)}</td>
              <td class="number">${count(each.head_sequence)}</td>
              <td>${[{ store: "", lag: each.lag, is_self: true }, ...each.stores].map((holder) => html`<${Holder} key=${holder.store} holder=${holder} />`)}</td>
              <td class="number wide">${bytes(each.bytes)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}

function Settings({ topic, administers, onChange }) {
  const button = administers && html`<button class="small" onClick=${onChange}>Change</button>`;
  return html`<${Panel} title="Settings" id="topic-settings" note=${button} bare>
    <table>
      <thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">From</th></tr></thead>
      <tbody>
        ${topic.settings.map(
          (each) => html`<tr key=${each.name}>
            <th scope="row" class="mono break">${each.name}</th>
            <td class="mono break">${each.value}</td>
            <td>${each.is_own ? html`<span class="tag warn">this topic</span>` : html`<span class="muted">the broker</span>`}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  <//>`;
}

const DIALOGS = { change: ChangeTopic, records: DeleteRecords, topic: DeleteTopic };

export function TopicPage({ route, session }) {
  const [, name, given] = route.segments;
  const [dialog, setDialog] = useState("");
  const [timed, setTimed] = useState(true);
  const view = useView(`topics/${segment(name)}${timed ? "?times=true" : ""}`, { intervalMs: 1000 });
  const many = view.data?.log_count > TIMED_LOGS_MAX;
  useEffect(() => {
    if (many) setTimed(false);
  }, [many]);
  const topic = view.data && total(view.data);
  const samples = useHistory(topic?.end ?? null, view.at, topic?.topic_id, 12);
  const [reads, writes, administers] = ["read", "write", "admin"].map((permission) => may(session, permission, name));
  const crumbs = html`<a href="#/topics">Topics</a>`;
  if (!topic) {
    const missing = view.error?.code === "topic_not_found";
    return html`<${Head} title=${name} crumbs=${crumbs} />
      ${missing ? html`<${Notice} kind="warn" urgent>There is no topic of this name. It may have been deleted.<//>` : html`<${Waiting} view=${view} what="the topic" />`}`;
  }
  if (!topic.log_count) return html`<${NodeTopic} topic=${topic} crumbs=${crumbs} />`;
  const tabs = TABS.filter(([, , permission]) => permission !== "read" || reads);
  if (writes) tabs.splice(reads ? 1 : 0, 0, ["produce", "Produce", "write"]);
  const tab = tabs.some(([each]) => each === given) ? given : tabs[0][0];
  const Shown = DIALOGS[dialog];
  const id = topic.topic_id; // a topic that is made again under the name is another one
  const close = (changed) => {
    const deleted = changed && dialog === "topic";
    setDialog("");
    if (deleted) leave("topics", name);
    else if (changed) view.reload();
  };
  const [oldest, newest] = [samples[0], samples.at(-1)];
  const rate = samples.length > 1 ? (Math.max(0, newest.value - oldest.value) * 1000) / (newest.at - oldest.at) : null;
  const items = [
    ["Records", count(topic.records)],
    ["In, per second", rate == null ? "–" : brief(rate)],
    ["Size", bytes(topic.bytes)],
    ["Logs", count(topic.log_count)],
    ["Newest record", html`<${Ago} ms=${topic.last_timestamp} />`],
  ];
  return html`<${Head} title=${name} crumbs=${crumbs}>
      ${administers && html`<button onClick=${() => setDialog("records")} disabled=${!topic.records}>Delete records</button>
        <button class="danger" onClick=${() => setDialog("topic")}>Delete</button>`}
    <//>
    <${Tiles} label="Figures of the topic" items=${items} />
    <nav class="tabs" aria-label="Parts of the topic">
      ${tabs.map(([each, title]) => html`<a key=${each} href=${href(["topics", name, each])} aria-current=${each === tab ? "page" : undefined}>${title}</a>`)}
    </nav>
    ${tab === "records" && html`<${Records} key=${`${id} ${route.opened}`} topic=${topic} route=${route} />`}
    ${tab === "produce" && html`<${Produce} key=${id} topic=${topic} />`}
    ${tab === "logs" && html`<${Logs} topic=${topic} />`}
    ${tab === "epochs" && html`<${Epochs} key=${id} topic=${topic} />`}
    ${tab === "partitions" && html`<${Partitions} topic=${topic} />`}
    ${tab === "settings" && html`<${Settings} topic=${topic} administers=${administers} onChange=${() => setDialog("change")} />`}
    ${Shown && html`<${Shown} key=${id} topic=${topic} onClose=${close} />`}`;
}
