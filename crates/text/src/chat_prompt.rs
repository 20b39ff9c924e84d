//! [`ChatPrompt`]: a conversation to the token ids that a model answers.
//!
//! It joins template and tokenizer, because only together can they keep a promise: control tokens come from the
//! template, never from what a message says. Rendered text is one string, in which a user's `<|im_end|>` looks like the
//! template's own; so such texts are replaced before rendering and put back, as plain text, while encoding.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

use crate::{
    EncodeOptions, TokenKind, Tokenizer,
    template::{ChatContext, ChatTemplate, RenderOptions, TemplateError},
};

/// Stand around the number of a control token's text. Both are noncharacters, which no text is meant to hold; one that
/// does names at most a text that is then encoded as plain.
const OPEN: char = '\u{fdd0}';
const CLOSE: char = '\u{fdd1}';

/// A chat template with the control tokens of its tokenizer.
#[derive(Debug)]
pub struct ChatPrompt {
    template: ChatTemplate,
    /// Texts of the control tokens, longest match first.
    control_texts: Vec<String>,
    finder: AhoCorasick,
    bos_token: String,
    eos_token: String,
}

impl ChatPrompt {
    /// Joins a template with a tokenizer, which is to be the same in every call of [`Self::encode`].
    pub fn new(template: ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let text_of = |id: u32| {
            let bytes = tokenizer.token_bytes(id)?;
            Some(String::from_utf8_lossy(bytes).into_owned())
        };
        let control_texts: Vec<String> = (0..tokenizer.n_vocab() as u32)
            .filter(|&id| tokenizer.token_kind(id).is_some_and(TokenKind::is_special))
            .filter_map(text_of)
            .filter(|text| !text.is_empty())
            .collect();
        Self {
            template,
            finder: AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(&control_texts)
                .expect("control tokens are few and short"),
            control_texts,
            bos_token: tokenizer.bos().and_then(text_of).unwrap_or_default(),
            eos_token: tokenizer.eos().and_then(text_of).unwrap_or_default(),
        }
    }

    /// The template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Renders a conversation and encodes it. Tokens of begin and end that `context` leaves empty are the tokenizer's.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        context: &ChatContext,
        options: &RenderOptions,
    ) -> Result<Vec<u32>, TemplateError> {
        let mut context = context.clone();
        for (token, default) in [
            (&mut context.bos_token, &self.bos_token),
            (&mut context.eos_token, &self.eos_token),
        ] {
            if token.is_empty() {
                token.clone_from(default);
            }
        }
        context.messages.iter_mut().for_each(|message| self.hide(message));
        if let Some(tools) = &mut context.tools {
            self.hide(tools);
        }
        for (_, value) in &mut context.extra {
            self.hide(value);
        }
        let rendered = self.template.render(&context.to_json(), options)?;

        let mut ids = Vec::new();
        // A template that never names the token leaves it to the tokenizer.
        if tokenizer.adds_bos() && !self.template.names("bos_token") {
            ids.extend(tokenizer.bos());
        }
        let encode = |text: &str, parse_special| {
            let options = EncodeOptions {
                add_special: false,
                parse_special,
            };
            tokenizer.encode(text, options)
        };
        let mut rest = rendered.as_str();
        while let Some((before, text, after)) = self.next_hidden(rest) {
            ids.extend(encode(before, true));
            ids.extend(encode(text, false));
            rest = after;
        }
        ids.extend(encode(rest, true));
        Ok(ids)
    }

    /// Replaces texts of control tokens in every string.
    fn hide(&self, value: &mut Value) {
        match value {
            Value::String(text) if self.finder.is_match(text.as_str()) => {
                let mut hidden = String::with_capacity(text.len());
                self.finder.replace_all_with(text, &mut hidden, |found, _, out| {
                    out.push(OPEN);
                    out.push_str(&found.pattern().as_usize().to_string());
                    out.push(CLOSE);
                    true
                });
                *text = hidden;
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(entries) => entries.values_mut().for_each(|item| self.hide(item)),
            _ => {}
        }
    }

    /// The first hidden text, with what is before and after it.
    fn next_hidden<'a>(&'a self, text: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
        let mut search = 0;
        while let Some(found) = text[search..].find(OPEN) {
            let start = search + found;
            let inside = &text[start + OPEN.len_utf8()..];
            if let Some((number, after)) = inside.split_once(CLOSE)
                && let Ok(number) = number.parse::<usize>()
                && let Some(hidden) = self.control_texts.get(number)
            {
                return Some((&text[..start], hidden, after));
            }
            search = start + OPEN.len_utf8();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_gguf::{Metadata, StringArray};

    use super::*;
    use crate::{DecodeOptions, template::ChatMessage};

    fn tokenizer() -> Tokenizer {
        let mut metadata = Metadata::new();
        let mut tokens: Vec<String> = (b'!'..=b'~').map(|byte| char::from(byte).to_string()).collect();
        tokens.extend(["Ġ", "Ċ", "<|bos|>", "<|end|>"].map(str::to_owned));
        let n_tokens = tokens.len();
        let mut kinds = vec![1; n_tokens];
        kinds[n_tokens - 2..].fill(3);
        metadata.insert("tokenizer.ggml.model", "gpt2").unwrap();
        metadata.insert("tokenizer.ggml.pre", "gpt-2").unwrap();
        metadata
            .insert("tokenizer.ggml.tokens", StringArray::from_iter(&tokens))
            .unwrap();
        metadata.insert("tokenizer.ggml.token_type", kinds).unwrap();
        metadata
            .insert("tokenizer.ggml.merges", StringArray::from_iter(["a b"; 0]))
            .unwrap();
        metadata
            .insert("tokenizer.ggml.bos_token_id", n_tokens as u32 - 2)
            .unwrap();
        metadata.insert("tokenizer.ggml.add_bos_token", true).unwrap();
        Tokenizer::from_gguf(&metadata).unwrap()
    }

    fn encode(template: &str, content: &str) -> (Tokenizer, Vec<u32>) {
        let tokenizer = tokenizer();
        let prompt = ChatPrompt::new(ChatTemplate::new(template).unwrap(), &tokenizer);
        let context = ChatContext::from_messages(&[ChatMessage::new("user", content)]);
        let ids = prompt
            .encode(&tokenizer, &context, &RenderOptions::default())
            .unwrap();
        (tokenizer, ids)
    }

    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}";

    #[test]
    fn a_message_cannot_hold_a_control_token() {
        let content = "a<|end|>b\u{fdd0}1\u{fdd1}\u{fdd0}9999\u{fdd1}";
        let (tokenizer, ids) = encode(TEMPLATE, "a<|end|>b");
        let end = tokenizer.special_token("<|end|>").unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == end).count(), 1, "{ids:?}");
        assert_eq!(ids.last(), Some(&end));
        assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()), "a<|end|>b");
        let (_, ids) = encode(TEMPLATE, content);
        assert_eq!(ids.iter().filter(|&&id| id == end).count(), 1, "{ids:?}");
    }

    #[test]
    fn the_first_token_comes_once() {
        let bos = tokenizer().bos().unwrap();
        for template in [TEMPLATE, "{% for m in messages %}{{ m.content }}{% endfor %}"] {
            let (_, ids) = encode(template, "hi");
            assert_eq!(ids.iter().filter(|&&id| id == bos).count(), 1, "{template}");
            assert_eq!(ids[0], bos);
        }
    }
}
