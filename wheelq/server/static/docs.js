// Shows openapi.json: routes by tag, what each takes and answers, an example to copy, and every kind of problem.
"use strict";

const make = (tag, attributes = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
};

// Text in which `code` is marked.
const worded = (text) => (text || "").split("`").map((part, n) => (n % 2 ? make("code", {textContent: part}) : part));

const find = (document_, schema) =>
  schema && schema.$ref ? schema.$ref.split("/").slice(1).reduce((part, name) => part[name], document_) : schema || {};

const kindOf = (schema) => {
  if (schema.anyOf) return schema.anyOf.map(kindOf).filter((kind, n, all) => all.indexOf(kind) === n).join(" or ");
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.join(" or ");
  if (schema.type === "array") return `list of ${kindOf(schema.items || {}) || "anything"}`;
  return [].concat(schema.type || []).join(" or ") || "anything";
};

const limitsOf = (schema) => {
  const limits = [];
  if (schema.minimum !== undefined) limits.push(`at least ${schema.minimum}`);
  if (schema.exclusiveMinimum !== undefined) limits.push(`above ${schema.exclusiveMinimum}`);
  if (schema.maximum !== undefined) limits.push(`at most ${schema.maximum}`);
  if (schema.maxItems !== undefined) limits.push(`at most ${schema.maxItems} items`);
  if (schema.default !== undefined && schema.default !== null) limits.push(`default ${JSON.stringify(schema.default)}`);
  const text = limits.join(", ");
  return text && `${text[0].toUpperCase()}${text.slice(1)}.`;
};

const table = (rows) =>
  make("table", {}, ...rows.map(([name, kind, words]) =>
    make("tr", {}, make("td", {}, make("code", {textContent: name})), make("td", {textContent: kind}),
      make("td", {}, ...worded(words)))));

const fields = (document_, schema) => {
  const required = schema.required || [];
  return Object.entries(schema.properties || {}).map(([name, of]) =>
    [name, kindOf(of) + (required.includes(name) ? ", required" : ""), [of.description, limitsOf(of)].filter(Boolean).join(" ")]);
};

const curl = (document_, path, method, body) => {
  const base = document_.servers ? document_.servers[0].url.replace(/\/$/, "") : "";
  const url = base + path.replace(/{topic}/, "orders").replace(/{group}/, "billing").replace(/{\w+}/, "order-42");
  const lines = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${location.origin}${url}`];
  if (body) lines.push("  -H 'content-type: application/json'", `  -d '${JSON.stringify(body)}'`);
  return lines.join(" \\\n");
};

const route = (document_, path, method, operation) => {
  const name = `${method}-${path}`.replace(/[^a-z]+/gi, "-").replace(/-$/, "");
  const article = make("article", {id: name}, make("h3", {},
    make("span", {className: `method ${method}`, textContent: method.toUpperCase()}), ` ${path}`));
  article.append(make("p", {className: "summary", textContent: operation.summary}),
    make("p", {}, ...worded(operation.description)));
  const parameters = (operation.parameters || []).map((parameter) =>
    [parameter.name, `${parameter.in}${parameter.required ? ", required" : ""}`, parameter.description || ""]);
  const content = operation.requestBody && Object.values(operation.requestBody.content)[0];
  const body = content && find(document_, content.schema);
  if (parameters.length) article.append(make("h4", {textContent: "parameters"}), table(parameters));
  if (body) article.append(make("h4", {textContent: "body"}), table(fields(document_, body)));
  article.append(make("pre", {textContent: curl(document_, path, method, body && (body.examples || [{}])[0])}));
  for (const [status, response] of Object.entries(operation.responses)) {
    if (status >= 300) continue;
    const schema = find(document_, response.content && Object.values(response.content)[0].schema);
    article.append(make("h4", {textContent: `${status} ${response.description || ""}`}), table(fields(document_, schema)));
  }
  const others = Object.keys(operation.responses).filter((status) => status >= 300).join(", ");
  if (others) article.append(make("p", {className: "others"}, "or ", make("a", {href: "#problems", textContent: `a problem: ${others}`})));
  return [name, article];
};

const show = (document_) => {
  document.getElementById("version").textContent = `version ${document_.info.version}`;
  const description = document.getElementById("description");
  document_.info.description.split("\n\n").forEach((text) => description.append(make("p", {}, ...worded(text))));
  const routes = document.getElementById("routes");
  const contents = document.getElementById("contents");
  const tags = new Map();
  for (const [path, operations] of Object.entries(document_.paths))
    for (const [method, operation] of Object.entries(operations)) {
      const tag = (operation.tags || ["other"])[0];
      if (!tags.has(tag)) tags.set(tag, []);
      tags.get(tag).push(route(document_, path, method, operation));
    }
  for (const [tag, articles] of tags) {
    routes.append(make("h2", {textContent: tag}), ...articles.map(([, article]) => article));
    contents.append(make("h2", {textContent: tag}), make("ul", {}, ...articles.map(([name, article]) =>
      make("li", {}, make("a", {href: `#${name}`, textContent: article.querySelector(".summary").textContent})))));
  }
  const problems = document.getElementById("problems");
  for (const problem of document_["x-problems"])
    problems.append(make("article", {id: problem.name}, make("h3", {textContent: `${problem.status} ${problem.name}`}),
      make("p", {}, ...worded(`${problem.title}. ${problem.remedy}`))));
  if (location.hash) location.replace(location.hash); // only now is there what it names
};

fetch("openapi.json").then((answer) => answer.json()).then(show);
