// Shows moments in the reader's time zone, asks before what cannot be undone, and keeps open pages live.
// Without it every page works by links and forms.
"use strict";

const moments = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  timeZoneName: "short", hour12: false,
});

const localize = (root) => {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (isNaN(at)) continue;
    element.title = element.dateTime;
    element.textContent = moments.format(at);
  }
};

document.addEventListener("submit", (event) => {
  const question = event.target.elements.namedItem("question");  // the server asks where it is sent
  if (!question) return;
  if (window.confirm(question.value)) question.disabled = true;
  else event.preventDefault();
});

document.addEventListener("change", (event) => {
  const name = event.target.dataset && event.target.dataset.all;
  if (!name) return;
  for (const box of document.querySelectorAll('input[type="checkbox"]'))
    if (box.name === name) box.checked = event.target.checked;
});

// Asks for this page again, and takes over the parts that are live. One that is being used is left alone.
let asking = false;
const refresh = async () => {
  if (asking || !document.querySelector("[data-live]")) return;
  asking = true;
  try {
    const answer = await fetch(location.href, {headers: {accept: "text/html"}});
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(part.id);
      if (!next) continue;
      const name = (title) => title.textContent.replace(/\d+/g, "");  // the numbers change while it stands
      const open = new Set([...part.querySelectorAll("details[open] h2")].map(name));
      for (const title of next.querySelectorAll("details h2")) title.closest("details").open = open.has(name(title));
      if (next.innerHTML === part.innerHTML) continue;
      const focused = part.contains(document.activeElement) ? document.activeElement : null;
      if (focused && focused.matches("input, select, textarea, button")) continue;
      const href = focused && focused.getAttribute("href");
      localize(next);
      part.replaceChildren(...document.importNode(next, true).childNodes);
      if (href) for (const link of part.querySelectorAll("a"))
        if (link.getAttribute("href") === href) { link.focus({preventScroll: true}); break; }
    }
  } finally {
    asking = false;
  }
};

const live = document.getElementById("live");
const say = (text, kind) => {
  if (!live) return;
  live.hidden = false;
  if (live.textContent !== text) live.textContent = text;
  live.className = `live ${kind}`;
};

// One stream for each tab that is seen; the server looks once for all of them.
let stream = null;
const listen = () => {
  if (stream || document.hidden || !document.querySelector("[data-live]")) return;
  stream = new EventSource(document.body.dataset.events);
  stream.addEventListener("hello", () => say("live", "on"));
  stream.addEventListener("look", () => { say("live", "on"); refresh().catch(() => say("not reached", "off")); });
  stream.addEventListener("away", () => say("Redis is away", "off"));
  stream.addEventListener("error", () => say("not reached", "off"));
};
const rest = () => {
  if (stream) stream.close();
  stream = null;
};
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return rest();
  refresh().catch(() => say("not reached", "off"));
  listen();
});
window.addEventListener("pagehide", rest);

localize(document);
listen();
for (const form of document.querySelectorAll("form[data-continues]")) form.requestSubmit();
