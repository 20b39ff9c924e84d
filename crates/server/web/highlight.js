// Colours code: splits it into words, strings, numbers and comments of common languages.
//
// Invariants: all of the text comes out, as text; the time grows linearly with it.

/** Longer code stays plain. */
const MAX_CHARS = 100_000;
const KEYWORDS = new Set(
  `abstract and as assert async await begin bool boolean break case catch char class const constexpr continue crate def default
  defer del delete do double echo elif else elsif end enum export extends extern false False fi final finally float fn for from
  func function global go goto if impl implements import in include inline instanceof int interface is lambda let long loop
  match mod module move mut namespace new nil None not null operator or override package pass private protected pub public
  raise range ref return self Self short signed sizeof static str string struct super switch template then this throw throws
  trait true True try type typedef typename typeof union unsafe unsigned use using var virtual void where while with yield`.split(/\s+/),
);
const SQL = new Set(
  `add all alter and as asc between by case create delete desc distinct drop else end exists from group having in index inner
  insert into is join key left like limit not null on or order outer primary right select set table then union unique update
  values view when where with`.split(/\s+/),
);
const SLASHES = "//[^\\n]*|/\\*[^]*?(?:\\*/|$)";
const HASH = "#[^\\n]*";
const COMMENTS = {
  [SLASHES]: "c cc cpp cs csharp css cuda dart go h hpp java javascript js json jsonc jsx kotlin kt php rs rust scala swift ts tsx typescript zig",
  [HASH]: "bash console dockerfile elixir ini julia make makefile perl py python r rb ruby sh shell toml yaml yml zsh",
  "--[^\\n]*|/\\*[^]*?(?:\\*/|$)": "haskell hs lua sql",
};
/** Tags: comments, values, then names. An apostrophe in words begins nothing. */
const MARKUP = /(<!--[^]*?(?:-->|$))|((?<==)(?:"[^"]*"|'[^']*'))|(&#?\w{1,10};)|(<\/?[A-Za-z!][\w:-]*)/g;
const MARKUP_NAMES = "html htm xml svg vue xhtml".split(" ");
const KINDS = ["comment", "string", "number", "keyword"];
const DOUBLE = '"(?:\\\\[^]|[^"\\\\\\n])*"?';
const SINGLE = "'(?:\\\\[^]|[^'\\\\\\n])*'?";
/** In Rust a quote may also begin a lifetime. */
const CHAR = "'(?:\\\\[^\\n]{1,10}|[^'\\\\\\n])'";
const TICKS = "`(?:\\\\[^]|[^`\\\\])*`?";

/** The parts of `text` as strings and `{ kind, text }`; one string where the language is not known. */
export function parts(text, language) {
  const name = language.toLowerCase();
  if (MARKUP_NAMES.includes(name)) return text.length > MAX_CHARS ? [text] : split(text, MARKUP, (hit) => KINDS.find((_, i) => hit[i + 1]));
  const comment = Object.keys(COMMENTS).find((mark) => COMMENTS[mark].split(" ").includes(name));
  if (!comment || text.length > MAX_CHARS) return [text];
  const strings = [DOUBLE, ["rs", "rust"].includes(name) ? CHAR : SINGLE, TICKS].join("|");
  const pattern = new RegExp(`(${comment})|(${strings})|(\\b\\d[\\w.]*)|([A-Za-z_$][\\w$]*)`, "g");
  return split(text, pattern, (hit) => kindOf(hit, name));
}

/** The parts of a text by what a pattern finds, where `kindOf` says what it is; nothing is plain text. */
function split(text, pattern, kindOf) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    const kind = kindOf(match);
    if (!kind) continue;
    if (match.index > end) found.push(text.slice(end, match.index));
    found.push({ kind, text: match[0] });
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push(text.slice(end));
  return found;
}

function kindOf([, comment, string, number, word], language) {
  if (comment) return "comment";
  if (string) return "string";
  if (number) return "number";
  const isKeyword = language === "sql" ? SQL.has(word.toLowerCase()) : KEYWORDS.has(word);
  return isKeyword ? "keyword" : "";
}
