// HTTP: requests to the broker that served this page, their errors, and what the user may do.

/** An answer that is an error. `code` is the API's, or "unreachable". */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let onUnauthenticated = () => {};

/** Note that the broker wants to know who asks. */
export function noteUnauthenticated() {
  onUnauthenticated();
}

/** Set what happens when the broker wants to know who asks. */
export function whenUnauthenticated(callback) {
  onUnauthenticated = callback;
}

/** Encode one segment of a path. */
export const segment = (name) => encodeURIComponent(name).replace(/^\.+$/, (dots) => dots.replaceAll(".", "%2E"));

async function send(method, path, { body, type, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = type ?? "application/json";
  const content = body === undefined || type ? body : JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, { method, headers, body: content, signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The broker does not answer.");
  }
  if (response.ok) return response;
  const found = await response.json().catch(() => null);
  const error = new ApiError(
    response.status,
    found?.error?.code ?? "failed",
    sentence(found?.error?.message ?? `the broker answered with status ${response.status}`),
  );
  if (error.code === "unauthenticated" && path !== "session") onUnauthenticated();
  throw error;
}

/** Give the API's message a capital letter and a full stop. */
export function sentence(text) {
  const trimmed = text.trim();
  return trimmed ? trimmed[0].toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".") : trimmed;
}

/** Send a request and return the JSON of its answer, or null without one. */
export async function request(method, path, options) {
  const response = await send(method, path, options);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export const get = (path, signal) => request("GET", path, { signal });

/** Return the records of a log from an offset on; answers are JSON Lines. */
export async function readRecords(topic, { log, from, limit, signal }) {
  const query = new URLSearchParams({ from: String(from), limit: String(limit) });
  if (log != null) query.set("log", String(log));
  const response = await send("GET", `topics/${segment(topic)}/records?${query}`, { signal });
  const text = await response.text();
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

/** Whether a pattern of permissions, in which `*` stands for any characters, matches a name. */
function matches(pattern, name) {
  const parts = pattern.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join("[^]*")}$`).test(name);
}

/** Whether the user has a permission for a topic or a group, such as `may(session, "write", "orders")`. */
export function may(session, permission, name) {
  return (session.permissions[permission] ?? []).some((pattern) => matches(pattern, name));
}
