// A group of consumers: its members, what each of them reads, and how far the group is behind.
import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { may, segment } from "../api.js";
import { Chart } from "../chart.js";
import { brief, count, plural } from "../format.js";
import { DeleteGroup, ResetOffsets } from "../group_dialogs.js";
import { useHistory, useView } from "../live.js";
import { href, leave } from "../router.js";
import { Empty, Head, Notice, Panel, Tiles, Waiting } from "../widgets.js";
import { GroupState } from "./groups.js";

/** Write what a member reads: the logs of each topic. */
function assignmentOf(member) {
  const topics = Object.entries(member.assignment ?? {});
  if (!topics.length) return html`<span class="muted">${member.assignment ? "nothing" : "not known"}</span>`;
  return topics.map(([topic, logs]) => html`<div key=${topic}><a class="mono" href=${href(["topics", topic])}>${topic}</a> <span class="muted">${logs.join(", ")}</span></div>`);
}

function Members({ members }) {
  if (!members.length) return html`<${Panel} title="Members" id="members" bare><${Empty} title="No members">Nobody reads for this group now. Its offsets are kept.<//><//>`;
  return html`<${Panel} title="Members" id="members" note=${plural(members.length, "member")} bare>
    <div class="scroll" tabindex="0" role="group" aria-label="Members">
      <table>
        <thead><tr><th scope="col">Client</th><th scope="col" class="wide">Host</th><th scope="col">Reads</th></tr></thead>
        <tbody>
          ${members.map(
            (each) => html`<tr key=${each.member_id}>
              <th scope="row" class="mono break" title=${each.member_id}>${each.client_id || each.member_id}</th>
              <td class="mono wide">${each.host.replace(/^\//, "")}</td>
              <td>${assignmentOf(each)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}

function Offsets({ offsets, total }) {
  if (!offsets.length) return html`<${Panel} title="Offsets" id="offsets" bare><${Empty} title="No offsets committed">The group has not said yet how far it has read.<//><//>`;
  return html`<${Panel} title="Offsets" id="offsets" note=${`${plural(total, "record")} behind`} bare>
    <div class="scroll" tabindex="0" role="group" aria-label="Offsets">
      <table>
        <thead>
          <tr>
            <th scope="col">Topic</th>
            <th scope="col" class="number">Log</th>
            <th scope="col" class="number">Committed</th>
            <th scope="col" class="number wide">End</th>
            <th scope="col" class="number">Lag</th>
          </tr>
        </thead>
        <tbody>
          ${offsets.map(
            (each) => html`<tr key=${`${each.topic} ${each.log}`}>
              <th scope="row" class="break"><a class="mono" href=${href(["topics", each.topic])}>${each.topic}</a></th>
              <td class="number">${each.log}</td>
              <td class="number">${count(each.offset)}</td>
              <td class="number wide">${count(each.end_offset)}</td>
              <td class=${`number${each.lag ? " warn" : ""}`}>${count(each.lag)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}

export function GroupPage({ route, session }) {
  const [, name] = route.segments;
  const [dialog, setDialog] = useState("");
  const view = useView(`groups/${segment(name)}`, { intervalMs: 1000 });
  const group = view.data;
  const total = group ? group.lag : null;
  const samples = useHistory(total, view.at, name);
  const crumbs = html`<a href="#/groups">Groups</a>`;
  if (!group) {
    const missing = view.error?.code === "group_not_found";
    return html`<${Head} title=${name} crumbs=${crumbs} />
      ${missing ? html`<${Notice} kind="warn" urgent>There is no group of this name. It may have been deleted.<//>` : html`<${Waiting} view=${view} what="the group" />`}`;
  }
  const manages = may(session, "groups", name);
  const active = group.members.length > 0;
  const close = (changed) => {
    const deleted = changed && dialog === "delete";
    setDialog("");
    if (deleted) leave("groups", name);
    else if (changed) view.reload();
  };
  const items = [
    ["State", html`<${GroupState} state=${group.state} />`],
    ["Type", group.type],
    ["Members", count(group.members.length)],
    ["Lag", count(total), "records"],
    ["Assigned by", group.assignor || "–"],
  ];
  return html`<${Head} title=${name} crumbs=${crumbs}>
      ${manages && html`<button onClick=${() => setDialog("reset")} disabled=${active || !group.offsets.length}>Reset offsets</button>
        <button class="danger" onClick=${() => setDialog("delete")} disabled=${active}>Delete</button>`}
    <//>
    ${manages && active && html`<p class="hint muted">Offsets can be reset, and the group deleted, when it has no members.</p>`}
    <${Tiles} label="Figures of the group" items=${items} />
    <${Panel} title="Lag over time" id="lag" note="Since this page was opened">
      <${Chart} label="Records that the group is behind" times=${samples.map((each) => each.at)} formatValue=${brief}
        series=${[{ name: "Lag", index: 1, values: samples.map((each) => each.value) }]} />
    <//>
    <${Members} members=${group.members} />
    <${Offsets} offsets=${group.offsets} total=${total} />
    ${dialog === "reset" && html`<${ResetOffsets} group=${group} name=${name} onClose=${close} />`}
    ${dialog === "delete" && html`<${DeleteGroup} name=${name} onClose=${close} />`}`;
}
