//! The pre-tokenizer of each `tokenizer.ggml.pre` name.
//!
//! This is a flat table of knowledge about models. If llama.cpp's file quotes the pattern of a model's own
//! `tokenizer.json`, the table has that pattern, because llama.cpp's own patterns are adapted to its matcher.
//!
//! Source: llama.cpp `src/llama-vocab.cpp` and `src/unicode.cpp`; the models' tokenizers for normalization.

use crate::TokenizerError;

use super::split::{
    Behavior, Contractions, DigitGroups, Digits, Pattern, Prepend, Spaces, Step, SymbolTail, WordRule,
};

/// The pre-tokenizer of a `tokenizer.ggml.pre` name.
#[derive(Clone, Debug)]
pub(crate) struct PreTokenizer {
    pub(crate) steps: Vec<Step>,
    /// Words that are tokens stay whole.
    pub(crate) ignores_merges: bool,
    /// Whether a file that does not say wants a beginning-of-sequence token.
    pub(crate) adds_bos: bool,
    /// Whether text is brought into NFC first. The rule: a name has it where the `tokenizer.json` that its models were
    /// trained with names the normalizer `NFC`; ids must be those of the training, also where llama.cpp skips the step.
    pub(crate) is_nfc: bool,
    pub(crate) spelling: Spelling,
}

/// How the tokens of a vocabulary are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// In GPT-2's stand-ins for bytes.
    Bytes,
    /// As text, with `▁` for spaces and `<0xNN>` for bytes.
    Metaspace,
    /// As text.
    Plain,
}

/// One step, before it is compiled.
enum Rule {
    Words(WordRule),
    Pattern(&'static str),
    /// Matches vanish.
    Remove(&'static str),
    Groups(DigitGroups),
    /// Each space, one put before the text included, begins a piece.
    Spaces,
}

use Rule::{Groups, Pattern as Regex, Remove, Words};

const LLAMA3: &[Rule] = &[Words(WordRule::LLAMA3)];
const GPT2: &[Rule] = &[Words(WordRule::GPT2)];
const QWEN2: &[Rule] = &[Words(WordRule::QWEN2)];
const GPT4O: &[Rule] = &[Words(WordRule::GPT4O)];
const DIGITS_GPT2: &[Rule] = &[Regex(r"\p{N}"), Words(WordRule::GPT2)];
const LINES: &[Rule] = &[Regex(r"[^\n]+|[\n]+")];
const LINES_OF_WORDS: &[Rule] = &[Regex(r"[^\n]+|[\n]+"), Rule::Spaces];
const BLOOM: &[Rule] = &[Regex(r" ?[^(\s|.,!?…。，、।۔،)]+")];
const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &[Rule] = &[
    Regex(r"\p{N}{1,3}"),
    Regex("[一-龥\u{3040}-ゟ゠-ヿ]+"),
    Regex(DEEPSEEK3_WORDS),
];
/// Punctuation and symbols of ASCII first, as the default of files that do not name a pre-tokenizer.
const DEFAULT: &[Rule] = &[
    Regex(r"[\p{P}$+<=>^\~|]+"),
    Words(WordRule::GPT2),
    Regex(r"\p{N}+"),
    Regex("[0-9][0-9][0-9]"),
];
const FALCON: &[Rule] = &[
    Regex(r"[\p{P}$+<=>^\~|`]+"),
    Words(WordRule::GPT2),
    Regex("[0-9][0-9][0-9]"),
];

/// Finds the pre-tokenizer of a name.
///
/// # Errors
/// [`TokenizerError::UnknownPreTokenizer`].
pub(crate) fn find(name: &str) -> Result<PreTokenizer, TokenizerError> {
    let mut ignores_merges = false;
    let mut adds_bos = false;
    let mut is_nfc = false;
    let mut spelling = Spelling::Bytes;
    let rules: &[Rule] = match name {
        "" | "default" => DEFAULT,
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => {
            ignores_merges = true;
            adds_bos = true;
            LLAMA3
        }
        "minicpm5" => {
            ignores_merges = true;
            &[
                Regex(r"\p{N}{1,3}"),
                Words(WordRule {
                    digits: Digits::Run,
                    ..WordRule::LLAMA3
                }),
            ]
        }
        "deepseek-llm" => &[
            Regex(r"[\r\n]"),
            Regex(
                r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            ),
            Regex("\\s?[!-/:-\\~！-／：-～‘-‟\u{3000}-。]+"),
            Regex(r"\s+$"),
            Regex("[一-龥ࠀ-一가-\u{d7ff}]+"),
            Regex(r"\p{N}+"),
        ],
        "deepseek-coder" => &[
            Regex(r"[\r\n]"),
            Regex(r"\s?\p{L}+"),
            Regex(r"\s?\p{P}+"),
            Regex("[一-龥ࠀ-一가-\u{d7ff}]+"),
            Regex(r"\p{N}"),
        ],
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => DEEPSEEK3,
        "spark2_5" => &[
            Regex(r"\p{N}{1,3}"),
            Regex("[一-龥\u{3040}-ゟ゠-ヿ]+"),
            Regex(SPARK),
            Regex(r"\p{N}"),
        ],
        "youtu" => {
            ignores_merges = true;
            &[
                Regex("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+"),
                Words(WordRule {
                    digits: Digits::UpTo(1),
                    ..WordRule::GPT4O
                }),
            ]
        }
        "falcon" => FALCON,
        "starcoder" | "refact" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => DIGITS_GPT2,
        "command-r" => {
            is_nfc = true;
            DIGITS_GPT2
        }
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de" | "a.x-4.0"
        | "mellum" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe" | "exaone4" | "jais" | "trillion"
        | "granite-docling" => GPT2,
        "mpt" | "olmo" | "modern-bert" => {
            is_nfc = true;
            GPT2
        }
        "jais-2" => &[Words(WordRule {
            spaces: Spaces::PowersOfTwo,
            ..WordRule::LLAMA3
        })],
        "gemma4" | "granite-embed-multi-311m" => {
            spelling = Spelling::Metaspace;
            adds_bos = true;
            LINES
        }
        "mmbert" => {
            spelling = Spelling::Metaspace;
            adds_bos = true;
            LINES_OF_WORDS
        }
        "sarvam-moe" => {
            spelling = Spelling::Metaspace;
            LINES
        }
        "whitespace" => {
            spelling = Spelling::Plain;
            &[Remove(r"\s+")]
        }
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "stablelm2" | "megrez" => {
            is_nfc = true;
            QWEN2
        }
        "hunyuan" | "solar-open" | "grok-2" => QWEN2,
        "qwen35" => {
            is_nfc = true;
            &[Words(WordRule::QWEN35)]
        }
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => LLAMA3,
        "poro-chat" | "bloom" | "gpt3-finnish" => BLOOM,
        "viking" => &[Regex(r" ?[^(\s|.,!?…。，、।۔،)]+"), Regex(r"\p{N}")],
        "tekken" => {
            ignores_merges = true;
            adds_bos = true;
            &[Words(WordRule::TEKKEN)]
        }
        "exaone-moe" => &[Regex(EXAONE_MOE)],
        "chameleon" => {
            adds_bos = true;
            &[
                Regex("<sentinel:[0-9]+>"),
                Regex("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
                Regex(r"([\t\n]|    |  )"),
                Regex(r"\p{N}"),
                Regex(r"[\p{P}!-/:-@\[-`{-\~]"),
                Words(WordRule::GPT2),
            ]
        }
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => GPT4O,
        "granite-embed-multi-97m" => {
            ignores_merges = true;
            GPT4O
        }
        "tiny_aya" | "cohere2moe" => {
            is_nfc = true;
            &[Groups(DigitGroups::BeforeWordEnd), Words(WordRule::GPT4O)]
        }
        "superbpe" => &[Regex(r"\p{N}+"), Groups(DigitGroups::Always)],
        "bailingmoe" | "bailingmoe2" | "llada-moe" => &[Words(WordRule {
            // `'(?i:[sdmt]|ll|ve|re)` is the same set, and `\s*[\r\n]` takes what `\s*[\r\n]+` does.
            contractions: Contractions::AnyCase,
            ..WordRule::QWEN2
        })],
        "seed-coder" => &[Words(WordRule {
            symbol_tail: SymbolTail::No,
            ..WordRule::QWEN2
        })],
        "kimi-k2" => &[Regex(KIMI_K2)],
        "ufakzeka" => &[Words(WordRule {
            contractions: Contractions::No,
            ..WordRule::QWEN2
        })],
        "afmoe" => &[
            Groups(DigitGroups::Always),
            Regex(
                "[一-鿿㐀-䶿豈-\u{faff}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}\u{e00}-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+",
            ),
            Regex(DEEPSEEK3_WORDS),
        ],
        "laguna" => &[Regex(r"[^\n]+|[\n]+"), Words(WordRule::QWEN2)],
        _ => {
            return Err(TokenizerError::UnknownPreTokenizer {
                name: name.to_owned(),
            });
        }
    };
    let steps = rules.iter().map(compile).collect::<Result<_, _>>()?;
    Ok(PreTokenizer {
        steps,
        ignores_merges,
        adds_bos,
        is_nfc,
        spelling,
    })
}

fn compile(rule: &Rule) -> Result<Step, TokenizerError> {
    Ok(match rule {
        Words(rule) => Step::Words(*rule),
        Groups(groups) => Step::DigitGroups(*groups),
        Rule::Spaces => Step::Metaspace {
            prepend: Prepend::UnlessLineBreaks,
            split: true,
        },
        Regex(source) => Step::Pattern(Pattern::new(source, Behavior::Isolated, false)?),
        Remove(source) => Step::Pattern(Pattern::new(source, Behavior::Removed, false)?),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::tokenizer::split;

    /// The patterns that look ahead.
    pub(in crate::tokenizer) const LOOK_AHEAD: &[&str] = &[DEEPSEEK3_WORDS, SPARK, EXAONE_MOE, KIMI_K2];

    #[rustfmt::skip]
    const NAMES: &[&str] = &[
        "default",
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "minicpm5",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "spark2_5",
        "youtu",
        "falcon",
        "mpt",
        "starcoder",
        "gpt-2",
        "phi-2",
        "jina-es",
        "jina-de",
        "gigachat",
        "jina-v2-es",
        "jina-v2-de",
        "a.x-4.0",
        "mellum",
        "modern-bert",
        "jais-2",
        "gemma4",
        "granite-embed-multi-311m",
        "mmbert",
        "sarvam-moe",
        "jina-v1-en",
        "jina-v2-code",
        "roberta-bpe",
        "whitespace",
        "refact",
        "command-r",
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "qwen35",
        "stablelm2",
        "olmo",
        "dbrx",
        "smaug-bpe",
        "poro-chat",
        "glm4",
        "chatglm-bpe",
        "viking",
        "jais",
        "tekken",
        "smollm",
        "codeshell",
        "bloom",
        "gpt3-finnish",
        "exaone",
        "exaone4",
        "exaone-moe",
        "chameleon",
        "minerva-7b",
        "megrez",
        "gpt-4o",
        "llama4",
        "kanana2",
        "talkie",
        "granite-embed-multi-97m",
        "tiny_aya",
        "cohere2moe",
        "superbpe",
        "trillion",
        "granite-docling",
        "bailingmoe",
        "bailingmoe2",
        "llada-moe",
        "seed-coder",
        "hunyuan",
        "hunyuan-dense",
        "hy_v4",
        "joyai-llm",
        "kimi-k2",
        "ufakzeka",
        "grok-2",
        "afmoe",
        "laguna",
        "minimax-m2",
        "solar-open",
        "mellum2",
    ];

    #[test]
    fn every_name_compiles_and_keeps_the_text() {
        let text = "Hello  wörld's 1234567 日本語\r\n\n \tI'LL 👩‍👩‍👧 <sentinel:3> e\u{301}x.  ";
        for name in NAMES {
            let pre = find(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut joined = String::new();
            split::run(&pre.steps, text, true, &mut |piece| joined.push_str(piece));
            let expected: String = match *name {
                "whitespace" => text.split_whitespace().collect(),
                "mmbert" => format!("▁{}", text.replace(' ', "▁")),
                _ => text.into(),
            };
            assert_eq!(joined, expected, "{name}");
        }
    }

    #[test]
    fn no_text_makes_splitting_slow() {
        const N_BYTES: usize = 50_000;
        // A quadratic splitter would take many seconds for a text of this size; a linear one takes milliseconds.
        let limit = std::time::Duration::from_secs(5);
        for part in [
            " ", "a", "A", "aA", "ªA", "7", "7a", "日", "e\u{301}", "\u{301}", "👩", "\n", " \n", "  \n a",
            ".", "'", "/",
        ] {
            let text = part.repeat(N_BYTES / part.len());
            for name in NAMES {
                let steps = find(name).unwrap().steps;
                let start = std::time::Instant::now();
                split::run(&steps, &text, true, &mut |piece| {
                    std::hint::black_box(piece);
                });
                assert!(
                    start.elapsed() < limit,
                    "{name}: {part:?} took {:?}",
                    start.elapsed()
                );
            }
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        assert_eq!(
            find("nobody").unwrap_err().to_string(),
            "pre-tokenizer `nobody` is unknown; convert the model again or set `tokenizer.ggml.pre`"
        );
    }
}
