//! [`Conversation`]: a conversation in a file, as `/save` writes it, and its parts. [`OwnFiles`]: which files `/save` may replace.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tokenmill::text::without_mark;

use crate::{failure::Failure, input::read_text, output};

/// Roles that a message may have.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// A saved conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) system: Option<String>,
    /// The messages after the system message.
    pub(super) messages: Vec<Value>,
}

impl Conversation {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, or holds something else.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        Self::parse(&read_text(path)?).map_err(|reason| {
            Failure::input(format!("{} is not a conversation: {reason}", path.display()))
                .hint("/save writes one: {\"messages\": [{\"role\": …, \"content\": …}]}")
        })
    }

    /// Reads the notes of a session.
    ///
    /// # Errors
    /// Notes of something else.
    pub(super) fn of_session(notes: &[u8], path: &Path) -> Result<Self, Failure> {
        let text = std::str::from_utf8(notes).map_err(|error| error.to_string());
        text.and_then(Self::parse).map_err(|reason| {
            Failure::input(format!(
                "session {} holds no conversation: {reason}",
                path.display()
            ))
            .hint("it was not written by `tokenmill chat`; name another file")
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut file: Value = serde_json::from_str(without_mark(text)).map_err(|error| error.to_string())?;
        let Some(Value::Array(mut messages)) = file.get_mut("messages").map(Value::take) else {
            return Err("`messages` is missing or not an array".to_owned());
        };
        for (at, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap_or_default();
            if !ROLES.contains(&role) {
                return Err(format!("`messages[{at}].role` is none of {}", ROLES.join(", ")));
            }
            let is_text = message["content"].is_string() || (message["content"].is_array() && role == "user");
            if !is_text {
                return Err(format!("`messages[{at}].content` is not a text"));
            }
            if role == "system" && at > 0 {
                return Err(format!(
                    "`messages[{at}]` is a system message, which can only be the first"
                ));
            }
        }
        let has_system = messages.first().is_some_and(|first| first["role"] == "system");
        let system = has_system.then(|| messages.remove(0));
        if messages.last().is_some_and(|last| last["role"] != "assistant") {
            return Err("its last message has no answer".to_owned());
        }
        Ok(Self {
            system: system.and_then(|message| message["content"].as_str().map(str::to_owned)),
            messages,
        })
    }
}

/// The files that a chat has saved to or loaded from. These it may replace, and no others: a name may be that of a model.
#[derive(Debug, Default)]
pub(super) struct OwnFiles(BTreeSet<PathBuf>);

impl OwnFiles {
    /// Adds a file that is there.
    pub(super) fn add(&mut self, path: &Path) {
        self.0.extend(fs::canonicalize(path));
    }

    /// Writes a file that is new, or one of these.
    ///
    /// # Errors
    /// A file that is there already, and one that cannot be written.
    pub(super) fn write(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
        let is_own = fs::canonicalize(path).is_ok_and(|path| self.0.contains(&path));
        if is_file && !is_own {
            return Err(Failure::usage(format!("{} already exists", path.display()))
                .hint("/save replaces only files that this chat saved or loaded; give another name"));
        }
        output::write_file(path, text)?;
        self.add(path);
        Ok(())
    }
}

/// Where each exchange begins: at a message of the user, or at whatever comes first.
pub(super) fn starts(messages: &[Value]) -> Vec<usize> {
    (messages.iter().enumerate())
        .filter(|(at, message)| *at == 0 || message["role"] == "user")
        .map(|(at, _)| at)
        .collect()
}

/// The calls of the last answer that have no result yet, in their order.
pub(super) fn open_calls(messages: &[Value]) -> Vec<Value> {
    let n_results = (messages.iter().rev())
        .take_while(|message| message["role"] == "tool")
        .count();
    let answer = messages.len().checked_sub(n_results + 1).map(|at| &messages[at]);
    let calls = answer.and_then(|answer| answer["tool_calls"].as_array());
    calls.into_iter().flatten().skip(n_results).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_saved_conversation_is_read_back() {
        let text = json!({"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello", "tool_calls": [{"id": "a"}]},
            {"role": "tool", "content": "7", "tool_call_id": "a"},
            {"role": "assistant", "content": "Seven"},
            {"role": "user", "content": "Bye"},
            {"role": "assistant", "content": "Bye"},
        ]})
        .to_string();
        let found = Conversation::parse(&text).unwrap();
        assert_eq!(found.system.as_deref(), Some("Be brief."));
        assert_eq!(found.messages.len(), 6);
        assert_eq!(starts(&found.messages), [0, 4]);
    }

    #[test]
    fn only_own_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [mine, model] = ["mine.json", "model.gguf"].map(|name| folder.path().join(name));
        fs::write(&model, "GGUF").unwrap();
        let mut own = OwnFiles::default();
        for text in ["first", "second"] {
            own.write(&mine, text).unwrap();
            assert_eq!(fs::read_to_string(&mine).unwrap(), text);
        }
        let refused = own.write(&model, "text").unwrap_err();
        assert!(refused.message.ends_with("already exists"), "{refused:?}");
        assert_eq!(fs::read_to_string(&model).unwrap(), "GGUF");
        own.add(&model);
        own.write(&model, "text").unwrap();
        assert!(OwnFiles::default().write(&mine, "third").is_err());
    }

    #[test]
    fn calls_are_open_until_each_has_its_result() {
        let mut messages = vec![
            json!({"role": "user", "content": "Hi"}),
            json!({"role": "assistant", "content": "", "tool_calls": [{"id": "a"}, {"id": "b"}]}),
        ];
        for n_open in [2, 1, 0, 0] {
            assert_eq!(open_calls(&messages).len(), n_open);
            messages.push(json!({"role": "tool", "content": "7"}));
        }
        assert_eq!(open_calls(&messages[..1]).len(), 0);
        assert_eq!(open_calls(&[]).len(), 0);
    }

    #[test]
    fn what_is_no_conversation_is_refused_with_its_reason() {
        for (text, reason) in [
            ("{", "EOF"),
            ("[]", "`messages`"),
            (r#"{"messages": 1}"#, "`messages`"),
            (r#"{"messages": [1]}"#, "`messages[0].role`"),
            (r#"{"messages": [{"role": "user"}]}"#, "`messages[0].content`"),
            (r#"{"messages": [{"role": "user", "content": "a"}]}"#, "no answer"),
        ] {
            let found = Conversation::parse(text).unwrap_err();
            assert!(found.contains(reason), "{text}: {found}");
        }
    }
}
