// The commands of LaTeX's mathematics by what they become: characters, names of functions, alphabets.

const table = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => {
  const at = pair.indexOf("=", 1);
  return [pair.slice(0, at), pair.slice(at + 1)];
}));

/** Letters and other names: `mi`. */
export const LETTERS = table(`
  alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ varkappa=ϰ lambda=λ mu=μ nu=ν
  xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω
  Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω
  infty=∞ partial=∂ nabla=∇ hbar=ℏ ell=ℓ Re=ℜ Im=ℑ aleph=ℵ beth=ℶ emptyset=∅ varnothing=∅ imath=ı jmath=ȷ wp=℘ top=⊤ bot=⊥
  angle=∠ triangle=△ square=□ blacksquare=■ qed=∎ degree=° dagger=† ddagger=‡ clubsuit=♣ diamondsuit=♢ heartsuit=♡ spadesuit=♠ checkmark=✓
  ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯ dotsm=⋯ forall=∀ exists=∃ nexists=∄ pounds=£ euro=€ yen=¥ copyright=©`);

/** Operators and relations: `mo`. */
export const OPERATORS = table(`
  times=× div=÷ cdot=⋅ cdotp=⋅ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ oslash=⊘ odot=⊙ wedge=∧ land=∧ vee=∨ lor=∨
  cap=∩ cup=∪ setminus=∖ smallsetminus=∖ sqcap=⊓ sqcup=⊔ uplus=⊎ amalg=⨿ neg=¬ lnot=¬ wr=≀ diamond=⋄
  leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ equiv=≡ approx=≈ approxeq=≊ cong=≅ sim=∼ simeq=≃ propto=∝ ll=≪ gg=≫ lesssim=≲ gtrsim=≳ leqslant=⩽ geqslant=⩾
  prec=≺ succ=≻ preceq=⪯ succeq=⪰ asymp=≍ doteq=≐ triangleq=≜ coloneqq=≔ models=⊨ vdash=⊢ dashv=⊣ perp=⊥ parallel=∥ mid=∣ nmid=∤ divides=∣
  in=∈ notin=∉ ni=∋ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊ supsetneq=⊋ nsubseteq=⊈ sqsubseteq=⊑ sqsupseteq=⊒
  to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ implies=⟹ impliedby=⟸ iff=⟺
  longrightarrow=⟶ longleftarrow=⟵ longleftrightarrow=⟷ Longrightarrow=⟹ Longleftarrow=⟸ Longleftrightarrow=⟺ mapsto=↦ longmapsto=⟼
  uparrow=↑ downarrow=↓ updownarrow=↕ Uparrow=⇑ Downarrow=⇓ nearrow=↗ searrow=↘ swarrow=↙ nwarrow=↖ hookrightarrow=↪ hookleftarrow=↩
  rightharpoonup=⇀ leftharpoonup=↼ rightleftharpoons=⇌ leadsto=⇝ therefore=∴ because=∵ colon=: lt=< gt=> prime=′ backslash=\\ %=% $=$ #=# &=& _=_
  {={ }=} lbrace={ rbrace=} langle=⟨ rangle=⟩ lceil=⌈ rceil=⌉ lfloor=⌊ rfloor=⌋ lvert=| rvert=| lVert=‖ rVert=‖ vert=| Vert=‖ |=‖ lbrack=[ rbrack=]`);

/** Large operators: in a formula of its own their limits stand below and above. */
export const LARGE = table(`sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀ bigsqcup=⨆ biguplus=⨄ bigodot=⨀`);
export const INTEGRALS = table(`int=∫ iint=∬ iiint=∭ oint=∮`);

export const FUNCTIONS = new Set(`arccos arcsin arctan arg cos cosh cot coth csc deg dim exp hom ker lg ln log sec sin sinh tan tanh`.split(" "));
/** Functions with limits below. */
export const LIMITS = new Set(`lim limsup liminf max min sup inf det gcd Pr argmax argmin`.split(" "));

/** Marks above their argument, and whether they stretch with it. */
export const ACCENTS = {
  hat: ["^", false], widehat: ["^", true], bar: ["¯", false], overline: ["¯", true], vec: ["→", false], overrightarrow: ["→", true],
  tilde: ["~", false], widetilde: ["~", true], dot: ["˙", false], ddot: ["¨", false], overbrace: ["⏞", true], check: ["ˇ", false],
  acute: ["´", false], grave: ["`", false], breve: ["˘", false], mathring: ["˚", false],
};
/** Marks below. */
export const UNDER = { underline: "_", underbrace: "⏟" };

/** Widths of spaces, in em. */
export const SPACES = { ",": 0.17, ":": 0.22, ">": 0.22, ";": 0.28, "!": 0, " ": 0.33, "~": 0.33, quad: 1, qquad: 2, thinspace: 0.17, enspace: 0.5, medspace: 0.22, thickspace: 0.28 };

/** Commands that change only the look of the next symbols, and are left out. */
export const IGNORED = new Set(`displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr
  bigm Bigm nonumber notag allowbreak nobreak middle hfill centering protect rm it bf cal hline strut`.split(/\s+/));

/** Where the capital and the small A, and the 0, of an alphabet stand, and the letters that Unicode has elsewhere. */
const ALPHABETS = {
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce], boldsymbol: [0x1d468, 0x1d482, 0x1d7ce], bm: [0x1d468, 0x1d482, 0x1d7ce],
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, table("C=ℂ H=ℍ N=ℕ P=ℙ Q=ℚ R=ℝ Z=ℤ")], Bbb: [0x1d538, 0x1d552, 0x1d7d8, table("C=ℂ H=ℍ N=ℕ P=ℙ Q=ℚ R=ℝ Z=ℤ")],
  mathcal: [0x1d49c, 0x1d4b6, 0, table("B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ e=ℯ g=ℊ o=ℴ")],
  mathscr: [0x1d49c, 0x1d4b6, 0, table("B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ e=ℯ g=ℊ o=ℴ")],
  mathfrak: [0x1d504, 0x1d51e, 0, table("C=ℭ H=ℌ I=ℑ R=ℜ Z=ℨ")],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2], mathtt: [0x1d670, 0x1d68a, 0x1d7f6],
};

/** Whether letters are written in this alphabet by such a command. */
export function isAlphabet(command) {
  return Object.hasOwn(ALPHABETS, command);
}

/** A text in the alphabet of a command; what the alphabet has not stays, and so does all where the command has none. */
export function inAlphabet(command, text) {
  if (!isAlphabet(command)) return text;
  const [capital, small, zero, elsewhere = {}] = ALPHABETS[command];
  const moved = (char, from, to) => String.fromCodePoint(to + char.charCodeAt(0) - from);
  return [...text].map((char) => {
    if (Object.hasOwn(elsewhere, char)) return elsewhere[char];
    if (/[A-Z]/.test(char)) return moved(char, 65, capital);
    if (/[a-z]/.test(char)) return moved(char, 97, small);
    return zero && /[0-9]/.test(char) ? moved(char, 48, zero) : char;
  }).join("");
}
