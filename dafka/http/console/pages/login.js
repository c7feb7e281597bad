// Logging in, for brokers that have users.
import { html, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { request } from "../api.js";
import { Field, Head, Notice, useTask } from "../widgets.js";

export function Login({ onDone }) {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const field = useRef();
  const task = useTask(
    async () => {
      try {
        return await request("POST", "session", { body: { user, password } });
      } catch (error) {
        setPassword("");
        field.current?.focus();
        throw error;
      }
    },
    () => onDone(),
  );
  const submit = (event) => {
    event.preventDefault();
    if (user && password && !task.busy) task.run();
  };
  return html`<div class="login panel">
    <form class="form" onSubmit=${submit}>
      <img src="console/icon.svg" alt="" width="36" height="36" />
      <${Head} title="Log in to Dafka" />
      ${task.error && html`<${Notice} kind="bad" urgent>${task.error}<//>`}
      <${Field} label="User">${(attributes) => html`<input ...${attributes} name="username" autocomplete="username" autocapitalize="none" spellcheck=${false} value=${user} onInput=${(event) => setUser(event.target.value)} />`}<//>
      <${Field} label="Password">${(attributes) => html`<input ...${attributes} ref=${field} name="password" type="password" autocomplete="current-password" value=${password} onInput=${(event) => setPassword(event.target.value)} />`}<//>
      <button class="primary" type="submit" disabled=${task.busy || !user || !password}>${task.busy ? "One moment…" : "Log in"}</button>
    </form>
  </div>`;
}
