// The studio: what is chosen on the left is asked on the right, side by side. All state is here; the server has none of it.

import { overlapTable, whereItLives } from "./charts.js";

const MARKS = ["●", "■", "▲", "◆", "★", "▼", "✚"];
const EXAMPLES = { label: "The food was cold and nobody came to help us.", write: "Name three colours of the rainbow." };
const $ = (id) => document.getElementById(id);
const state = {
  facts: null, // what the server tells about its skills
  skills: [], // those it holds, in its order
  chosen: new Map(), // name → scale
  mode: "label",
  task: "",
  asking: null, // aborts what is under way when something newer is asked
};

// ---------------------------------------------------------------- the server

class Refusal extends Error {}

async function api(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...(options.body && typeof options.body === "string" ? { "Content-Type": "application/json" } : {}),
    ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new Refusal("The server does not answer. Is it still running?");
  }
  if (answer.status === 401) {
    $("key").hidden = false;
    $("key-text").focus();
  }
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new Refusal(body?.error?.message ?? `The server answered ${answer.status}.`);
  }
  return answer;
}

const post = (path, body, signal) => api(path, { method: "POST", body: JSON.stringify(body), signal });

/** The events of a stream, one JSON object each. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let open = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return;
    }
    const parts = (open + value).split("\n\n");
    open = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") {
        return;
      }
      const event = JSON.parse(data);
      if (event.error) {
        throw new Refusal(event.error.message);
      }
      yield event;
    }
  }
}

// ---------------------------------------------------------------- small things

function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) {
      made[key] = value;
    } else {
      made.setAttribute(key, value);
    }
  }
  made.append(...children);
  return made;
}

function complain(error) {
  if (error.name === "AbortError") {
    return;
  }
  $("problem").hidden = false;
  $("problem").querySelector("p").textContent = error.message;
  if (!(error instanceof Refusal)) {
    console.error(error);
  }
}

function calm() {
  $("problem").hidden = true;
}

const place = (name) => Math.max(0, state.skills.findIndex((skill) => skill.id === name));
const mark = (name) => make("span", { className: "mark", ariaHidden: "true" }, MARKS[place(name) % MARKS.length]);
const colour = (node, name) => node.style.setProperty("--own", `var(--s${place(name) % 7})`);
const percent = (share) => `${(100 * share).toFixed(share > 0.0995 || share === 0 ? 0 : 1)} %`;
const term = ([name, scale]) => (scale === 1 ? name : `${scale}*${name}`);

function later(work, wait) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
}

// ---------------------------------------------------------------- skills

async function refresh() {
  const [skills, facts] = await Promise.all([api("/v1/skills"), api("/studio/skills")].map((each) => each.then((one) => one.json())));
  $("key").hidden = true;
  state.facts = facts;
  state.skills = skills.skills;
  const held = new Set(state.skills.map((skill) => skill.id));
  for (const name of state.chosen.keys()) {
    if (!held.has(name)) {
      state.chosen.delete(name);
    }
  }
  $("base").replaceChildren("on ", make("b", {}, facts.base));
  showSkills();
  showModes();
  showInside();
  if (skills.refused.length) {
    complain(new Refusal(skills.refused.map((each) => `${each.file} is not held: ${each.why}`).join("\n")));
  }
}

function showSkills() {
  const focused = document.activeElement?.id;
  $("no-skills").hidden = state.skills.length > 0;
  $("skills").replaceChildren(...state.skills.map(card));
  if (focused && $(focused)) {
    $(focused).focus();
  }
}

function card(skill) {
  const id = `skill-${skill.id}`;
  const on = state.chosen.has(skill.id);
  const scale = state.chosen.get(skill.id) ?? 1;
  const box = make("input", { type: "checkbox", id, checked: on });
  box.addEventListener("change", () => choose(skill.id, box.checked));
  const name = make("label", { className: "name", htmlFor: id }, mark(skill.id), skill.id);
  const away = make("button", { type: "button", className: "quiet", ariaLabel: `Let go of ${skill.id}`, title: "Let go of it" }, "×");
  away.addEventListener("click", () => letGo(skill.id));
  const slider = make("input", { type: "range", id: `scale-${skill.id}`, min: -1, max: 2, step: 0.05, value: scale, ariaLabel: `Scale of ${skill.id}` });
  const shown = make("output", { htmlFor: slider.id }, scale.toFixed(2));
  slider.addEventListener("input", () => {
    state.chosen.set(skill.id, Number(slider.value));
    shown.textContent = Number(slider.value).toFixed(2);
    askSoon();
  });
  const facts = make("p", { className: "facts" }, `${skill.entries.toLocaleString("en")} entries${skill.labels ? ` · ${skill.labels.join(", ")}` : ""}`);
  const made = make("li", { className: `skill card${on ? " on" : ""}` }, box, name, away, facts,
    make("div", { className: "scale" }, make("label", { htmlFor: slider.id }, "scale"), slider, shown));
  colour(made, skill.id);
  return made;
}

function choose(name, on) {
  if (on) {
    state.chosen.set(name, 1);
  } else {
    state.chosen.delete(name);
  }
  showSkills();
  showModes();
  showInside();
  ask();
}

async function letGo(name) {
  try {
    calm();
    await api(`/v1/skills/${encodeURIComponent(name)}`, { method: "DELETE" });
    $("status").textContent = `${name} is no longer held.`;
    await refresh();
    ask();
  } catch (error) {
    complain(error);
  }
}

async function hold(files) {
  for (const file of files) {
    const name = file.name.replace(/\.safetensors$/, "").replace(/[^A-Za-z0-9_.-]+/g, "-");
    try {
      calm();
      $("status").textContent = `Reading ${file.name} …`;
      await api(`/v1/skills/${encodeURIComponent(name)}`, { method: "PUT", body: file });
      $("status").textContent = `${name} is held now.`;
      state.chosen.set(name, 1);
      await refresh();
      ask();
    } catch (error) {
      $("status").textContent = "";
      const why = error.message.replace(`${name}.safetensors: `, ""); // the file's name is said once
      complain(error instanceof Refusal ? new Refusal(`${file.name} is not held: ${why}`) : error);
    }
  }
}

// ---------------------------------------------------------------- what is asked

const classifiers = () => state.skills.filter((skill) => skill.classifies);

function showModes() {
  const focused = document.activeElement?.id;
  const modes = [...(state.facts.writes ? [["write", "Write"]] : []), ...(classifiers().length ? [["label", "Label"]] : [])];
  if (!modes.some(([mode]) => mode === state.mode)) {
    state.mode = modes[0]?.[0] ?? "label";
  }
  $("modes").hidden = modes.length < 2;
  $("modes").replaceChildren(...modes.map(([mode, text]) => {
    const radio = make("input", { type: "radio", id: `mode-${mode}`, name: "mode", value: mode, checked: mode === state.mode });
    radio.addEventListener("change", () => {
      state.mode = mode;
      showModes();
      ask();
    });
    return make("label", {}, radio, text);
  }));
  if (focused?.startsWith("mode-")) {
    $(focused)?.focus();
  }
  $("writing").hidden = state.mode !== "write";
  $("legend").hidden = true;
  showTasks();
  showFields();
}

/** A question of several fields is answered line by line, and says so. */
function showFields() {
  const fields = state.mode === "label" ? asked().fields : [];
  $("question-label").textContent = state.mode === "write" ? "Prompt" : fields.length < 2 ? "Text" : `Text, one line each: ${fields.join(", ")}`;
}

/** The skill whose question is asked. */
const asked = () => state.skills.find((skill) => skill.id === state.task) ?? { fields: [] };

function showTasks() {
  const able = classifiers();
  const preferred = able.find((skill) => state.chosen.has(skill.id))?.id ?? able[0]?.id ?? "";
  const kept = able.some((skill) => skill.id === state.task) && (state.chosen.has(state.task) || !state.chosen.size);
  state.task = kept ? state.task : preferred;
  $("questions").hidden = state.mode !== "label" || able.length < 2;
  $("task").replaceChildren(...able.map((skill) => make("option", { value: skill.id, selected: skill.id === state.task }, `${skill.id}: ${skill.labels.join(" / ")}`)));
}

/** Who answers: the base, each chosen skill, and all of them together. */
function columns() {
  const chosen = [...state.chosen];
  const alone = chosen.map((each) => ({ title: each[0], name: each[0], model: term(each) }));
  const sum = chosen.length > 1 ? [{ title: "together", model: chosen.map(term).join("+"), together: true }] : [];
  return [{ title: state.facts.base, model: state.facts.base, base: true }, ...alone, ...sum];
}

const askSoon = later(() => ask(), 180);

async function ask() {
  state.asking?.abort();
  const asking = new AbortController();
  state.asking = asking;
  const text = $("question").value;
  const every = columns();
  const open = state.mode === "label" && !state.task;
  $("same").hidden = open;
  showCommand(every.at(-1).model, text);
  const cards = existingCards(every);
  if (!text.trim() || open) {
    const why = open ? "No skill here asks a question yet. A graft that localize --task made brings one: drop its file on the page." : "Type something to ask.";
    cards.forEach((card) => fill(card, make("p", { className: "muted" }, why)));
    return;
  }
  calm();
  const work = state.mode === "write" ? write : label;
  await Promise.all(every.map((each, place) => answer(work, each, cards[place], text, asking.signal)));
}

async function answer(work, each, card, text, signal) {
  const began = performance.now();
  card.classList.add("busy");
  card.ariaBusy = "true"; // a reader waits for the end of a text
  try {
    const made = await work(each, card, text, signal);
    card.querySelector(".time").textContent = `${Math.round(performance.now() - began)} ms`;
    card.querySelector(".made").replaceChildren(...(made.length ? made.map(
      (one) => make("span", { title: one.digest }, `${one.digest.slice(0, 8)} × ${one.scale}`)) : ["no graft"]));
  } catch (error) {
    if (error.name !== "AbortError") {
      fill(card, make("p", { className: "refusal" }, error.message));
      complain(error);
    }
  } finally {
    if (!signal.aborted) {
      card.classList.remove("busy");
      card.ariaBusy = "false";
    }
  }
}

async function label(each, card, text, signal) {
  const body = { model: each.model, task: state.task, input: asFields(text, asked().fields) };
  const found = await (await post("/v1/classify", body, signal)).json();
  const { label: best, probabilities } = found.data[0];
  const drawn = card.querySelector(".bars");
  const names = Object.keys(probabilities);
  const same = drawn && [...drawn.children].map((bar) => bar.dataset.label).join("\n") === names.join("\n");
  if (!same) {
    fill(card, make("p", { className: "verdict" }), make("dl", { className: "bars" }, ...names.map(bar)));
  }
  card.querySelector(".verdict").textContent = best;
  for (const line of card.querySelectorAll(".bar")) {
    const share = probabilities[line.dataset.label];
    line.classList.toggle("most", line.dataset.label === best);
    line.querySelector("b").textContent = percent(share);
    line.querySelector("i").style.width = `${100 * share}%`;
  }
  card.dataset.answer = JSON.stringify(probabilities);
  if (each.base) {
    state.baseline = probabilities;
  }
  markBase();
  return found.skills;
}

function bar(name) {
  return make("div", { className: "bar", "data-label": name }, make("dt", {}, make("span", {}, name), make("b")),
    make("dd", {}, make("i"), make("u", { hidden: true, title: "the base" })));
}

/** On every card but the base's own, a line where the base stands. */
function markBase() {
  $("legend").hidden = !state.chosen.size;
  for (const card of $("answers").children) {
    for (const line of card.querySelectorAll(".bar")) {
      const share = state.baseline?.[line.dataset.label];
      const tick = line.querySelector("u");
      tick.hidden = share === undefined || "base" in card.dataset;
      tick.style.left = `${100 * Math.min(0.995, Math.max(0.005, share ?? 0))}%`;
    }
  }
}

/** Several fields are given one per line, in their order. */
function asFields(text, fields) {
  if (fields.length < 2) {
    return text;
  }
  const lines = text.split("\n");
  return Object.fromEntries(fields.map((field, place) => [field, place === fields.length - 1 ? lines.slice(place).join("\n") : lines[place] ?? ""]));
}

async function write(each, card, text, signal) {
  const shown = make("p", { className: "text" });
  fill(card, shown);
  const settings = { model: each.model, stream: true, temperature: Number($("temperature").value) || 0, max_tokens: Number($("tokens").value) || 60 };
  const found = state.facts.chats
    ? await post("/v1/chat/completions", { ...settings, messages: [{ role: "user", content: text }] }, signal)
    : await post("/v1/completions", { ...settings, prompt: text }, signal);
  let made = [];
  for await (const event of events(found)) {
    made = event.skills ?? made;
    const choice = event.choices[0];
    shown.append(choice?.delta?.content ?? choice?.text ?? "");
  }
  card.dataset.answer = shown.textContent;
  return made;
}

// ---------------------------------------------------------------- answers

function existingCards(every) {
  const old = new Map([...$("answers").children].map((card) => [card.dataset.title, card]));
  const cards = every.map((each) => {
    const key = `${state.mode} ${each.title}`;
    const card = old.get(key) ?? newCard(each, key);
    const title = each.base ? `${each.title} (base)` : each.together ? each.model : each.title;
    card.querySelector("h3").replaceChildren(...title.split(/(?<=\+)/).flatMap((part) => [part, make("wbr")]));
    return card;
  });
  if (cards.length !== $("answers").children.length || cards.some((card, at) => card !== $("answers").children[at])) {
    $("answers").replaceChildren(...cards);
  }
  return cards;
}

function newCard(each, key) {
  const sign = each.base ? "○" : each.together ? "⊕" : MARKS[place(each.name) % MARKS.length];
  const made = make("article", { className: "answer card", "data-title": key },
    make("div", { className: "who" }, make("span", { className: "mark", ariaHidden: "true" }, sign), make("h3")),
    make("div", { className: "content" }), make("footer", {}, make("span", { className: "made" }), make("span", { className: "time" })));
  if (each.base) {
    made.dataset.base = "";
  } else if (each.together) {
    made.style.setProperty("--own", "var(--ink)");
  } else {
    colour(made, each.name);
  }
  return made;
}

function fill(card, ...nodes) {
  card.querySelector(".content").replaceChildren(...nodes);
}

function showCommand(model, text) {
  const chat = state.mode === "write" && state.facts.chats;
  const path = state.mode === "label" ? "classify" : chat ? "chat/completions" : "completions";
  const body = state.mode === "label" ? { model, task: state.task, input: asFields(text, asked().fields) }
    : chat ? { model, messages: [{ role: "user", content: text }] } : { model, prompt: text };
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  $("command").textContent = `curl ${location.origin}/v1/${path} -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
}

// ---------------------------------------------------------------- inside skills

function showInside() {
  const shown = state.chosen.size ? state.skills.filter((skill) => state.chosen.has(skill.id)) : state.skills.slice(0, 6);
  $("inside").hidden = !shown.length;
  $("maps").replaceChildren(...shown.filter((skill) => state.facts.skills[skill.id]).map((skill) => {
    const made = make("figure", { className: "card" }, make("figcaption", {}, mark(skill.id), skill.id), whereItLives(state.facts.skills[skill.id], skill.id));
    colour(made, skill.id);
    return made;
  }));
  const compared = state.skills.map((skill) => skill.id).slice(0, 24);
  $("overlap").hidden = compared.length < 2;
  $("overlaps").replaceChildren(make("div", { className: "scroll card" }, overlapTable(compared, state.facts.overlaps)));
}

// ---------------------------------------------------------------- the page

function listen() {
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  $("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      ask();
    }
  });
  $("question").addEventListener("input", later(() => state.mode === "label" && ask(), 350));
  $("task").addEventListener("change", () => {
    state.task = $("task").value;
    showFields();
    ask();
  });
  $("file").addEventListener("change", async () => {
    await hold([...$("file").files]);
    $("file").value = "";
  });
  $("problem").querySelector("button").addEventListener("click", calm);
  $("key").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("key", $("key-text").value);
    calm();
    start();
  });
  $("theme").addEventListener("click", () => theme(isDark() ? "light" : "dark"));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) {
      document.body.classList.remove("dropping");
    }
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    hold([...event.dataTransfer.files]);
  });
}

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function theme(wanted) {
  if (wanted) {
    document.documentElement.dataset.theme = wanted;
    localStorage.setItem("theme", wanted);
  }
  $("theme").textContent = isDark() ? "☀" : "☾";
}

async function start() {
  try {
    await refresh();
    if (state.facts.writes) {
      state.mode = "write";
    }
    for (const skill of state.skills.slice(0, 2)) {
      state.chosen.set(skill.id, 1);
    }
    showSkills();
    showModes();
    showInside();
    $("question").value ||= EXAMPLES[state.mode];
    await ask();
  } catch (error) {
    complain(error);
  }
  document.documentElement.dataset.ready = "true";
}

theme(localStorage.getItem("theme"));
listen();
start();
