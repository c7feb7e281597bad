// The storage: what it holds, and its verification.
import { html } from "../vendor/htm-preact-3.1.1.js";
import { request } from "../api.js";
import { bytes, count, duration, plural } from "../format.js";
import { useView } from "../live.js";
import { href } from "../router.js";
import { Ago, Empty, Head, Notice, Panel, Tiles, Waiting, announce, useTask } from "../widgets.js";

function Damages({ damages, label }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>
    <table>
      <thead><tr><th scope="col">Where</th><th scope="col">What</th><th scope="col">Records</th></tr></thead>
      <tbody>
        ${damages.map(
          (each, index) => html`<tr key=${index}>
            <td class="mono break">${each.location}</td>
            <td class="break">${each.reason}</td>
            <td class="break">${each.topic ? html`<span class="mono">${each.topic}/${each.address}</span> ${count(each.first_sequence)} to ${count(each.end_sequence - 1)}` : "–"}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function Verification() {
  const view = useView("storage/verification", { intervalMs: 500 });
  const start = useTask(
    () => request("POST", "storage/verification"),
    () => {
      announce("The verification has started.");
      view.reload();
    },
  );
  const found = view.data;
  if (!found) return html`<${Panel} title="Verification" id="verification"><${Waiting} view=${view} what="the verification" bare /><//>`;
  const running = found.state === "running";
  const button = html`<button class="small" disabled=${running || start.busy} onClick=${start.run}>${running ? "Verifying…" : found.state === "none" ? "Verify the storage" : "Verify again"}</button>`;
  const share = found.records_total ? found.records_read / found.records_total : 0;
  return html`<${Panel} title="Verification" id="verification" note=${button}>
    ${start.error && html`<${Notice} kind="bad" urgent>${start.error}<//>`}
    ${found.state === "none" && html`<p class="muted">Every record is read once, and the totals are compared with what was read. The broker goes on working meanwhile.</p>`}
    ${running &&
    html`<p id="verifying">${count(found.records_read)} of ${plural(found.records_total, "record")} read</p>
      <progress aria-labelledby="verifying" max="1" value=${share}></progress>`}
    ${found.state === "failed" && html`<${Notice} kind="bad">The verification failed: ${found.error}<//>`}
    ${found.state === "done" &&
    (found.damages.length
      ? html`<${Notice} kind="bad">${plural(found.damages.length, "place")} ${found.damages.length === 1 ? "is" : "are"} damaged.<//><${Damages} damages=${found.damages} label="Damage" />`
      : html`<${Notice} kind="good">No damage. ${plural(found.records_read, "record")} in ${plural(found.partitions, "partition")} can be read.<//>`)}
    ${(found.state === "done" || found.state === "failed") && html`<p class="muted">Finished <${Ago} ms=${found.finished_at} />, after ${duration(found.finished_at - found.started_at)}.</p>`}
  <//>`;
}

function Topics({ topics, total }) {
  if (!topics.length) return html`<${Panel} title="Largest topics" id="largest" bare><${Empty} title="Nothing is stored yet" /><//>`;
  const largest = Math.max(1, ...topics.map((each) => each.content_bytes));
  return html`<${Panel} title="Largest topics" id="largest" note=${total > topics.length ? `${count(topics.length)} of ${count(total)}` : null} bare>
    <div class="scroll" tabindex="0" role="group" aria-label="Largest topics">
      <table>
        <thead>
          <tr>
            <th scope="col">Topic</th>
            <th scope="col" class="number">Size</th>
            <th scope="col" class="wide share"><span class="unseen">Share</span></th>
            <th scope="col" class="number">Records</th>
            <th scope="col" class="number wide">Partitions</th>
          </tr>
        </thead>
        <tbody>
          ${topics.map(
            (each) => html`<tr key=${each.name}>
              <th scope="row" class="mono break">${each.name.startsWith("$") ? each.name : html`<a href=${href(["topics", each.name])}>${each.name}</a>`}</th>
              <td class="number">${bytes(each.content_bytes)}</td>
              <td class="wide share"><span class="bar"><span style=${{ width: `${(100 * each.content_bytes) / largest}%` }}></span></span></td>
              <td class="number">${count(each.records)}</td>
              <td class="number wide">${count(each.partitions)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}

function ColdTier({ tier }) {
  const items = [
    ["In use", bytes(tier.object_bytes), plural(tier.objects, "object")],
    ["Contents", bytes(tier.content_bytes)],
    ["Records", count(tier.records)],
    ["To be moved", bytes(tier.due_bytes)],
  ];
  return html`<${Panel} title="Cold tier" id="cold" note=${html`<code class="break">${tier.place}</code>`}>
    ${tier.trouble && html`<${Notice} kind="bad">${tier.trouble}<//>`}
    ${tier.damaged > 0 && html`<${Notice} kind="bad">${plural(tier.damaged, "piece")} of objects cannot be read.<//>`}
    <${Tiles} label="Figures of the cold tier" items=${items} />
  <//>`;
}

export function StoragePage() {
  const view = useView("storage", { intervalMs: 3000 });
  if (!view.data) return html`<${Head} title="Storage" /><${Waiting} view=${view} what="the storage" />`;
  const found = view.data;
  const items = [
    ["In use", bytes(found.stored_bytes), "with indexes"],
    ["Contents", bytes(found.content_bytes)],
    ["Free on the disk", bytes(found.free_bytes)],
    ["Records", count(found.records)],
    ["Partitions", count(found.partitions)],
  ];
  return html`<${Head} title="Storage" sub=${html`<code class="break">${found.location}</code>`} />
    ${found.trouble && html`<${Notice} kind="bad" urgent>${found.trouble}<//>`}
    <${Tiles} label="Figures of the storage" items=${items} />
    ${found.cold && html`<${ColdTier} tier=${found.cold} />`}
    <${Verification} />
    ${found.repairs.length > 0 &&
    html`<${Panel} title="Repaired when it was opened" id="repairs" bare><${Damages} damages=${found.repairs} label="Repairs" /><//>`}
    <${Topics} topics=${found.topics} total=${found.topic_count} />`;
}
