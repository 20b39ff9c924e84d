//! [`StoredResponses`]: conversations that a later request may continue.
//!
//! This is the server's only memory of past conversations. Invariants: it has a bound in bytes and in number,
//! the oldest leave first, and no request finds another tenant's conversation. Conversations are kept as JSON
//! text, whose length counts: a tree of values takes up to a hundred times as much. A conversation counts
//! from its request on, before it has an answer.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;

use crate::{config::keys::Tenant, dialects::openai::chat::TemplateMessage};

/// Bytes of all conversations.
const MAX_BYTES: usize = 32 << 20;

/// Conversations.
const MAX_STORED: usize = 1024;

/// Overhead of a conversation besides its texts.
const ENTRY_BYTES: usize = 256;

#[derive(Debug)]
struct Stored {
    id: String,
    tenant: Tenant,
    /// The conversation before the answer.
    said: Box<str>,
    /// The answer as it was sent, and as the next turn sees it; `None` while it is generated.
    answer: Option<(Box<str>, Box<str>)>,
}

impl Stored {
    fn n_bytes(&self) -> usize {
        let answer = self.answer.as_ref();
        ENTRY_BYTES + self.said.len() + answer.map_or(0, |(given, seen)| given.len() + seen.len())
    }
}

/// The newest conversations.
#[derive(Debug, Default)]
pub(crate) struct StoredResponses(Mutex<VecDeque<Stored>>);

/// Marks a conversation whose answer is being generated; dropping it without an answer removes the conversation.
#[derive(Debug)]
pub(crate) struct Pending {
    stored: Arc<StoredResponses>,
    id: String,
    tenant: Tenant,
}

impl Pending {
    /// Stores the answer; `seen` is its form for the next turn. An answer that is too large, or whose conversation was removed meanwhile,
    /// is dropped.
    pub(crate) fn finish(&self, seen: TemplateMessage, given: &Value) {
        let answer = (given.to_string().into(), text_of(vec![seen]));
        let mut stored = self.stored.lock();
        let is_this = |stored: &Stored| stored.id == self.id && stored.tenant == self.tenant;
        let Some(at) = stored.iter().position(is_this) else {
            return;
        };
        let mut entry = stored.remove(at).expect("it was just found");
        entry.answer = Some(answer);
        push(&mut stored, entry);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let is_open =
            |stored: &Stored| stored.answer.is_none() && stored.id == self.id && stored.tenant == self.tenant;
        self.stored.lock().retain(|stored| !is_open(stored));
    }
}

/// Appends an entry and drops the oldest ones beyond the bound, or the entry itself if it exceeds the bound.
fn push(stored: &mut VecDeque<Stored>, entry: Stored) {
    let n_bytes = entry.n_bytes();
    if n_bytes > MAX_BYTES {
        return;
    }
    let mut total: usize = stored.iter().map(Stored::n_bytes).sum();
    while total + n_bytes > MAX_BYTES || stored.len() >= MAX_STORED {
        let Some(oldest) = stored.pop_front() else { break };
        total -= oldest.n_bytes();
    }
    stored.push_back(entry);
}

impl StoredResponses {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Stored>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the conversation before an answer.
    pub(crate) fn begin(self: &Arc<Self>, id: &str, tenant: Tenant, said: Vec<TemplateMessage>) -> Pending {
        let entry = Stored {
            id: id.to_owned(),
            tenant,
            said: text_of(said),
            answer: None,
        };
        push(&mut self.lock(), entry);
        Pending {
            stored: Arc::clone(self),
            id: id.to_owned(),
            tenant,
        }
    }

    /// Finds the complete answer of an id and a tenant, and maps it.
    fn find<T>(&self, id: &str, tenant: Tenant, make: impl FnOnce(&Stored, &str, &str) -> T) -> Option<T> {
        let stored = self.lock();
        let found = (stored.iter()).find(|stored| stored.id == id && stored.tenant == tenant)?;
        let (given, seen) = found.answer.as_ref()?;
        Some(make(found, given, seen))
    }

    /// Returns the JSON text of an answer as it was sent, if it is still stored and belongs to the tenant.
    pub(crate) fn answer(&self, id: &str, tenant: Tenant) -> Option<String> {
        self.find(id, tenant, |_, given, _| given.to_owned())
    }

    /// Forgets an answer and its conversation. Returns whether it was stored and the tenant's.
    pub(crate) fn forget(&self, id: &str, tenant: Tenant) -> bool {
        let mut stored = self.lock();
        let n_before = stored.len();
        stored.retain(|stored| stored.id != id || stored.tenant != tenant || stored.answer.is_none());
        stored.len() < n_before
    }

    /// Returns the conversation up to an answer, if it is still stored and belongs to the tenant. Calls whose arguments reach the nesting
    /// limit of JSON cannot be read back inside their message.
    pub(crate) fn get(&self, id: &str, tenant: Tenant) -> Option<Vec<TemplateMessage>> {
        let texts = self.find(id, tenant, |found, _, seen| {
            [found.said.to_string(), seen.to_owned()]
        })?;
        let [mut messages, seen] = texts.map(|text| messages_of(&text));
        messages.as_mut()?.extend(seen?);
        messages
    }
}

/// Writes messages as JSON text, including the fields that a message's own serialization skips.
fn text_of(messages: Vec<TemplateMessage>) -> Box<str> {
    let mut list = Vec::with_capacity(messages.len());
    for mut message in messages {
        let parts = std::mem::take(&mut message.parts);
        list.push((message, parts));
    }
    let text = serde_json::to_string(&list).expect("messages of texts are JSON");
    text.into()
}

fn messages_of(text: &str) -> Option<Vec<TemplateMessage>> {
    let list: Vec<(TemplateMessage, Vec<Value>)> = serde_json::from_str(text).ok()?;
    let whole = |(message, parts)| TemplateMessage { parts, ..message };
    Some(list.into_iter().map(whole).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(n_bytes: usize) -> Vec<TemplateMessage> {
        vec![TemplateMessage {
            content: "a".repeat(n_bytes),
            ..TemplateMessage::default()
        }]
    }

    fn reply() -> TemplateMessage {
        said(1).remove(0)
    }

    fn put(
        stored: &Arc<StoredResponses>,
        id: &str,
        tenant: Tenant,
        said: Vec<TemplateMessage>,
        answer: &Value,
    ) {
        stored.begin(id, tenant, said).finish(reply(), answer);
    }

    #[test]
    fn the_oldest_make_room_and_tenants_are_apart() {
        let stored = Arc::<StoredResponses>::default();
        let tenant = Tenant::default();
        put(&stored, "first", tenant, said(MAX_BYTES / 2), &Value::Null);
        put(&stored, "second", tenant, said(MAX_BYTES / 3), &Value::Null);
        assert!(stored.get("first", tenant).is_some());
        assert!(stored.get("first", Tenant::of_key("other")).is_none());
        put(&stored, "third", tenant, said(MAX_BYTES / 3), &Value::Null);
        assert!(stored.get("first", tenant).is_none());
        assert!(stored.get("second", tenant).is_some());
        put(&stored, "large", tenant, said(MAX_BYTES + 1), &Value::Null);
        assert!(stored.get("large", tenant).is_none() && stored.get("third", tenant).is_some());
        for id in 0..2 * MAX_STORED {
            put(&stored, &id.to_string(), tenant, said(1), &Value::Null);
        }
        assert!(stored.get("0", tenant).is_none());
    }

    #[test]
    fn an_answer_is_found_and_forgotten_by_its_tenant_only() {
        let stored = Arc::<StoredResponses>::default();
        let (tenant, other) = (Tenant::default(), Tenant::of_key("other"));
        put(&stored, "a", tenant, said(1), &json!({"id": "a"}));
        assert_eq!(stored.answer("a", tenant).as_deref(), Some(r#"{"id":"a"}"#));
        assert_eq!(
            (stored.answer("a", other), stored.answer("b", tenant)),
            (None, None)
        );
        assert!(!stored.forget("a", other) && stored.forget("a", tenant) && !stored.forget("a", tenant));
        assert!(stored.answer("a", tenant).is_none() && stored.get("a", tenant).is_none());
        // An answer counts against the limit of stored answers.
        let large = Value::from("a".repeat(MAX_BYTES));
        put(&stored, "large", tenant, said(1), &large);
        assert!(stored.answer("large", tenant).is_none());
    }

    #[test]
    fn a_conversation_comes_back_whole_and_only_with_its_answer() {
        let stored = Arc::<StoredResponses>::default();
        let tenant = Tenant::default();
        let message = TemplateMessage {
            role: "assistant".to_owned(),
            content: "a".to_owned(),
            parts: vec![json!({"type": "image_url", "image_url": {"url": "data:"}})],
            name: Some("n".to_owned()),
            reasoning_content: Some("r".to_owned()),
            tool_calls: Some(json!([{"z": 1, "a": 2}])),
            tool_call_id: Some("c".to_owned()),
        };
        let pending = stored.begin("a", tenant, vec![message.clone(); 2]);
        assert!(stored.get("a", tenant).is_none() && stored.answer("a", tenant).is_none());
        pending.finish(reply(), &Value::Null);
        drop(pending);
        let whole = stored.get("a", tenant).expect("it is stored");
        assert_eq!(whole, [message.clone(), message, reply()]);
        // Dropping a pending conversation removes it.
        drop(stored.begin("b", tenant, said(1)));
        assert_eq!(stored.lock().len(), 1);
    }

    /// Tests every field at its largest, and many trees that are small as text.
    #[test]
    fn whatever_a_message_has_is_counted_as_it_is_kept() {
        let text = || "x".repeat(1 << 20);
        let tree = || Value::from(vec![json!({"": {}}); 1 << 13]);
        let of = |change: &dyn Fn(&mut TemplateMessage)| {
            let mut message = TemplateMessage::default();
            change(&mut message);
            message
        };
        let messages = [
            of(&|message| message.role = text()),
            of(&|message| message.content = text()),
            of(&|message| message.parts = vec![tree()]),
            of(&|message| message.name = Some(text())),
            of(&|message| message.reasoning_content = Some(text())),
            of(&|message| message.tool_calls = Some(tree())),
            of(&|message| message.tool_call_id = Some(text())),
        ];
        let stored = Arc::<StoredResponses>::default();
        let mut open = Vec::new();
        for turn in 0..2 * (MAX_BYTES >> 20) {
            let message = &messages[turn % messages.len()];
            let pending = stored.begin(&turn.to_string(), Tenant::default(), vec![message.clone()]);
            if turn % 2 == 0 {
                pending.finish(reply(), &json!({ "text": tree() }));
            }
            open.push(pending);
            let stored = stored.lock();
            let n_bytes: usize = stored.iter().map(Stored::n_bytes).sum();
            let n_kept: usize = (stored.iter())
                .map(|entry| {
                    let answer = entry.answer.as_ref();
                    entry.said.len() + answer.map_or(0, |(given, seen)| given.len() + seen.len())
                })
                .sum();
            assert!(n_kept <= n_bytes && n_bytes <= MAX_BYTES && n_kept >= stored.len() << 16);
        }
    }
}
