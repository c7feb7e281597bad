// Keys, values and headers of records: text, JSON or bytes, and how they are found and shown.
import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { bytes as size } from "./format.js";

const PREVIEW = 240;
const TEXT_MAX = 200_000;
const HEX_ROWS = 64;
const TOKENS = /("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null)|([{}[\],:])/g;

/** Return the bytes of a base64 text. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
}

/** Return what a record has as its key or value: `kind` is "none", "text" or "bytes". */
export function partOf(record, name) {
  const encoded = record[`${name}_base64`];
  if (encoded != null) return { kind: "bytes", bytes: fromBase64(encoded) };
  const text = record[name];
  return text == null ? { kind: "none" } : { kind: "text", text };
}

/** Return a header's value in the same form. */
export function headerPart(value) {
  if (value === null || value === undefined) return { kind: "none" };
  return typeof value === "string" ? { kind: "text", text: value } : { kind: "bytes", bytes: fromBase64(value.base64) };
}

const hex = (value, digits = 2) => value.toString(16).padStart(digits, "0");

/** One line that stands for a key or a value. */
export function preview(part) {
  if (part.kind === "none") return "";
  if (part.kind === "text") return part.text.slice(0, PREVIEW).replace(/\s+/g, " ");
  return Array.from(part.bytes.subarray(0, 24), (each) => hex(each)).join(" ") + (part.bytes.length > 24 ? " …" : "");
}

/** Return whether a text is a JSON object or list. */
function isJson(text) {
  if (!/^\s*[[{]/.test(text) || text.length > TEXT_MAX) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Lay JSON out in lines. The numbers and texts stay as they were written: parsing would round large numbers. */
export function layOut(text) {
  const out = [];
  let depth = 0;
  let empty = false;
  const line = () => out.push(`\n${"  ".repeat(depth)}`);
  const tokens = [...text.matchAll(TOKENS)];
  tokens.forEach(([token, string, number, literal], index) => {
    if (string !== undefined) {
      const isKey = tokens[index + 1]?.[0] === ":";
      out.push(html`<span class=${isKey ? "j-key" : "j-text"}>${string}</span>`);
    } else if (number !== undefined || literal !== undefined) {
      out.push(html`<span class="j-number">${token}</span>`);
    } else if (token === "{" || token === "[") {
      out.push(token);
      const next = tokens[index + 1]?.[0];
      empty = next === "}" || next === "]";
      if (!empty) {
        depth += 1;
        line();
      }
    } else if (token === "}" || token === "]") {
      if (!empty) {
        depth -= 1;
        line();
      }
      empty = false;
      out.push(token);
    } else if (token === ",") {
      out.push(token);
      line();
    } else {
      out.push(": ");
    }
  });
  return out;
}

function Hex({ bytes }) {
  const [rows, setRows] = useState(HEX_ROWS);
  const lines = [];
  for (let at = 0; at < bytes.length && lines.length < rows; at += 16) {
    const part = bytes.subarray(at, at + 16);
    const codes = Array.from(part, (each) => hex(each)).join(" ").padEnd(47);
    const characters = Array.from(part, (each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${hex(at, 6)}  ${codes}  ${characters}`);
  }
  const more = Math.ceil(bytes.length / 16) - rows;
  return html`<pre class="value hex" tabindex="0">${lines.join("\n")}</pre>
    ${more > 0 && html`<button class="small" onClick=${() => setRows(rows * 8)}>Show further bytes</button>`}`;
}

const encoder = new TextEncoder();

/** A key, value or header in full: JSON laid out, other text as it is, bytes in hex. */
export function Value({ part, title }) {
  const [way, setWay] = useState("");
  if (part.kind === "none") return html`<h3>${title}</h3><p class="muted">${title === "Value" ? "None: a tombstone" : "None"}</p>`;
  const json = part.kind === "text" && isJson(part.text);
  const ways = part.kind === "bytes" ? ["hex"] : json ? ["json", "text", "hex"] : ["text", "hex"];
  const shown = ways.includes(way) ? way : ways[0];
  const content = part.kind === "bytes" ? part.bytes : encoder.encode(part.text);
  const names = { json: "JSON", text: "Text", hex: "Hex" };
  return html`<div class="value-head">
      <h3>${title} <span class="muted">${size(content.length)}</span></h3>
      <div class="ways" role="group" aria-label=${`How the ${title.toLowerCase()} is shown`}>
        ${ways.length > 1 && ways.map((each) => html`<button key=${each} class="small quiet" aria-pressed=${each === shown ? "true" : "false"} onClick=${() => setWay(each)}>${names[each]}</button>`)}
      </div>
    </div>
    ${shown === "hex" && html`<${Hex} bytes=${content} />`}
    ${shown === "json" && html`<pre class="value" tabindex="0">${layOut(part.text)}</pre>`}
    ${shown === "text" && html`<pre class="value wrap" tabindex="0">${part.text.slice(0, TEXT_MAX)}</pre>`}
    ${shown !== "hex" && content.length > TEXT_MAX && html`<p class="muted">Only the beginning is shown.</p>`}`;
}

/** Return the text in which a search looks. */
function searchable(part) {
  if (part.kind === "text") return part.text.toLowerCase();
  return part.kind === "bytes" ? Array.from(part.bytes, (each) => hex(each)).join("") : "";
}

function jsonField(part, path) {
  if (part.kind !== "text") return undefined;
  try {
    return path.split(".").reduce((value, name) => value?.[name], JSON.parse(part.text));
  } catch {
    return undefined;
  }
}

/** Return the condition that one word of a search stands for. */
function condition(word) {
  const field = /^\$\.([^=]+)=(.*)$/.exec(word);
  if (field) return (record) => String(jsonField(partOf(record, "value"), field[1]) ?? "") === field[2];
  const part = /^(key|value|header):(.*)$/i.exec(word);
  const wanted = (part ? part[2] : word).toLowerCase();
  const inHeaders = (record) => (record.headers ?? []).some(([name, value]) => `${name}=${searchable(headerPart(value))}`.toLowerCase().includes(wanted));
  const inPart = (name) => (record) => searchable(partOf(record, name)).includes(wanted);
  const kind = part?.[1].toLowerCase();
  if (kind === "header") return inHeaders;
  if (kind) return inPart(kind);
  return (record) => inPart("key")(record) || inPart("value")(record) || inHeaders(record);
}

/**
 * Return whether records match a search: each of its words must be found. `key:`, `value:` and `header:` name where,
 * and `$.a.b=c` compares a field of a JSON value. Quotes keep words together.
 */
export function matcher(text) {
  const words = [...text.matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, word]) => quoted ?? word);
  const conditions = words.map(condition);
  return (record) => conditions.every((each) => each(record));
}
