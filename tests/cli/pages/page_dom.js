// SPDX-License-Identifier: Apache-2.0
// Runs the script of a page on a document of its own, and prints the elements that it makes, as HTML.
//
//   node page_dom.js PAGE.html
"use strict";
const fs = require("fs"), vm = require("vm");

const escaped = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);

class Node {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, children: [], hidden: false });
  }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(name, call) { this["on" + name] = call; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.join(""); }
  html() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${escaped(value)}"`).join("");
    const inner = this.children.map(child => child instanceof Node ? child.html() : escaped(child)).join("");
    return this.hidden ? "" : `<${this.tag}${attributes}>${inner}</${this.tag}>`;
  }
  find(tag) {
    return this.children.filter(child => child instanceof Node)
      .flatMap(child => (child.tag === tag ? [child] : []).concat(child.find(tag)));
  }
}

const page = fs.readFileSync(process.argv[2], "utf8");
const byId = { page: new Node("main") };
for (const [, id, text] of page.matchAll(/<script type="application\/json" id="(\w+)">([^]*?)<\/script>/g))
  byId[id] = { textContent: text };
const scripts = [...page.matchAll(/<script>([^]*?)<\/script>/g)];
if (scripts.length !== 1)
  throw new Error(`${scripts.length} scripts`);
vm.runInNewContext(scripts[0][1], { document: {
  getElementById: id => byId[id],
  createElement: tag => new Node(tag),
  createElementNS: (space, tag) => new Node(tag),
} }, { filename: "page" });

// Each heading sorts up and down, and each filter that nothing contains leaves no row.
for (const button of byId.page.find("button"))
  for (let i = 0; i < 2 && button.onclick; i++)
    button.onclick();
const first = byId.page.html();
for (const input of byId.page.find("input")) {
  input.oninput({ target: { value: "no row has this" } });
  input.oninput({ target: { value: "" } });
}
if (byId.page.html() !== first)
  throw new Error("a filter that was removed changed the page");
console.log(first);
