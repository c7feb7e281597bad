// What keeps pages current: one WebSocket to the broker, and hooks that follow resources and the connection.
import { useEffect, useReducer, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { DafkaClient } from "../dafka.js";
import { ApiError, get, noteUnauthenticated, sentence } from "./api.js";

const LOST_SHOWN_MS = 1500;

/** The time in ms since 1970 by a clock that does not jump while the page is open. */
export const steadyNow = () => performance.timeOrigin + performance.now();

/** "connecting", "open" or "lost". */
let state = "connecting";
const listeners = new Set();
let client = null;

function setState(next) {
  if (state === next) return;
  state = next;
  for (const listener of listeners) listener(next);
}

/** Open the connection, or open it again with the session's user. */
export function openConnection() {
  client?.close();
  client = new DafkaClient({ url: new URL("ws", document.baseURI) });
  let shown = 0;
  client.addEventListener("open", () => {
    clearTimeout(shown);
    setState("open");
  });
  client.addEventListener("error", () => noteUnauthenticated());
  client.addEventListener("close", () => {
    clearTimeout(shown);
    shown = setTimeout(() => setState("lost"), LOST_SHOWN_MS);
  });
}

/** Return the state of the connection. A loss shows after a moment, so that a short one does not flicker. */
export function useConnection() {
  const [, update] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    listeners.add(update);
    return () => listeners.delete(update);
  }, []);
  return state;
}

/** Return whether the page can be seen. */
export function useVisible() {
  const [visible, setVisible] = useState(!document.hidden);
  useEffect(() => {
    const update = () => setVisible(!document.hidden);
    document.addEventListener("visibilitychange", update);
    return () => document.removeEventListener("visibilitychange", update);
  }, []);
  return visible;
}

/**
 * Follow the resource at a path, or nothing if the path is null.
 * Returns `data` with the newest answer, `error` with the newest refusal, and `reload`.
 */
export function useView(path, { intervalMs = 2000 } = {}) {
  const [view, setView] = useState({ path, data: null, error: null, at: 0 });
  const visible = useVisible();
  const [round, reload] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    if (path === null || !visible) return undefined;
    const ending = new AbortController();
    let watched = false;
    const put = (data, error) => {
      if (ending.signal.aborted) return;
      setView((before) => {
        const kept = before.path === path ? before.data : null;
        return { path, data: error ? (error.status === 0 ? kept : null) : data, error, at: steadyNow() };
      });
    };
    get(path, ending.signal).then(
      (data) => watched || put(data, null),
      (error) => watched || error.name === "AbortError" || put(null, error),
    );
    const watch = client.watch(`/${path}`, { intervalMs }, (status, body) => {
      watched = true;
      if (status < 300) put(body, null);
      else if (status === 401) noteUnauthenticated();
      else put(null, new ApiError(status, body?.error?.code ?? "failed", sentence(body?.error?.message ?? "failed")));
    });
    return () => {
      ending.abort();
      watch.close();
    };
  }, [path, intervalMs, visible, round]);
  const current = view.path === path ? view : { data: null, error: null, at: 0 };
  return { ...current, reload };
}

/** Return the samples that a page has collected while it was open: the newest `limit` of them. */
export function useHistory(value, at, key, limit = 300) {
  const history = useRef({ key: null, samples: [] });
  if (history.current.key !== key) history.current = { key, samples: [] };
  const { samples } = history.current;
  if (value !== null && at && samples.at(-1)?.at !== at) {
    samples.push({ at, value });
    if (samples.length > limit) samples.shift();
  }
  return samples;
}

/** Return the client of the connection, for subscriptions. */
export const liveClient = () => client;
