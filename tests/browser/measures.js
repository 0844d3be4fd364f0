// What tests measure in a page; each function is called by name.

const seen = (element) => element.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true });

function openAll() {
  for (const part of document.querySelectorAll("details")) part.open = true;
}

// The red, green, blue and alpha of a colour as the browser computed it.
function channels(colour) {
  const numbers = colour.match(/[\d.]+/g).map(Number);
  return numbers.length === 4 ? numbers : [...numbers, 1];
}

// WCAG 2: relative luminance, and the contrast of two opaque colours.
function luminance([red, green, blue]) {
  const linear = (channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
}

function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

function behind(element) {
  for (let each = element; each; each = each.parentElement) {
    const colour = channels(getComputedStyle(each).backgroundColor);
    if (colour[3] === 1) return colour;
    if (colour[3] !== 0) throw new Error("a background that shines through cannot be measured");
  }
  return [255, 255, 255, 1];
}

// Every text that is seen, with its contrast against what is behind it.
function textContrasts() {
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const text = texts.currentNode.textContent.trim();
    if (!text || !seen(element) || element.closest("script, title, desc, caption")) continue;
    const style = getComputedStyle(element);
    const ink = channels(element instanceof SVGElement ? style.fill : style.color);
    if (ink[3] !== 1 || style.opacity !== "1") throw new Error("see-through text cannot be measured");
    found.push([contrast(ink, behind(element)), text.slice(0, 40)]);
  }
  return found;
}

// Every mark and bar that carries a number, with its contrast against the page.
function markContrasts() {
  const carriers = ".mark, .bar.plus, .bar.minus, .bar.up, .bar.down, .cell.answered, line.edge, .series";
  return [...document.querySelectorAll(carriers)].filter(seen).map((mark) => {
    const style = getComputedStyle(mark);
    const page = behind(mark);
    const drawn = [style.fill, style.stroke].filter((colour) => colour !== "none").map(channels);
    return [Math.max(...drawn.map((colour) => contrast(colour, page))), mark.getAttribute("class")];
  });
}

// What sticks out of the window sideways, but for what is inside a box that scrolls or cuts.
function stickingOut() {
  return [...document.body.querySelectorAll("*")]
    .filter((each) => seen(each) && !each.closest(".scroll > *, .rows li > *, .skip, caption, title, desc, svg.point"))
    .map((each) => [each.getBoundingClientRect(), each])
    .filter(([box]) => box.width > 0 && (box.left < -0.5 || box.right > innerWidth + 0.5))
    .map(([box, each]) => `${each.tagName} ${each.getAttribute("class")} ${box.left} ${box.right}`);
}

// Everything that the keyboard should reach, in order.
function controls() {
  const all = document.querySelectorAll("a[href], button, summary, [tabindex='0']");
  return [...all].filter(seen);
}

function outline(element) {
  const style = getComputedStyle(element);
  return style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
}

function column(table, place) {
  return [...table.tBodies[0].rows].map((row) => row.cells[place].dataset.value ?? row.cells[place].textContent);
}
