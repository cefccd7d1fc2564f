// Searches the pages of the guide in the reader's browser: every word must be in a section; titles count most.
"use strict";

const form = document.getElementById("search");
const found = document.getElementById("found");
const root = document.body.dataset.root;
const MOST = 12;
let sections = null;

async function load() {
  sections ??= await (await fetch(`${root}static/search.json`)).json();
}

function score(section, words) {
  const title = `${section.page} ${section.title}`.toLowerCase();
  const text = section.text.toLowerCase();
  let sum = 0;
  for (const word of words) {
    if (title.includes(word)) sum += 10;
    else if (text.includes(word)) sum += 1;
    else return 0;
  }
  return sum;
}

function around(text, word) {
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 60);
  return (at ? "… " : "") + text.slice(at, at + 180) + (at + 180 < text.length ? " …" : "");
}

function show(words) {
  const hits = sections
    .map((section) => [score(section, words), section])
    .filter(([sum]) => sum)
    .sort((a, b) => b[0] - a[0])
    .slice(0, MOST);
  found.replaceChildren();
  const heading = document.createElement("h2");
  heading.textContent = hits.length ? "Found" : "Nothing found";
  found.append(heading);
  for (const [, section] of hits) {
    const line = document.createElement("p");
    const link = document.createElement("a");
    link.href = `${root}${section.href}`;
    link.textContent = section.title === section.page ? section.page : `${section.page}: ${section.title}`;
    line.append(link, document.createElement("br"), around(section.text, words[0]));
    found.append(line);
  }
  found.hidden = false;
}

form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", async () => {
  const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) {
    found.hidden = true;
    return;
  }
  await load();
  show(words);
});
