//! [`StoredResponses`]: conversations that a later request may continue.
//!
//! Separate from the endpoint because this is the server's only memory of what was said. Invariant: it has a bound in bytes
//! and in number, the oldest go first, and no request finds the conversation of another tenant.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

use crate::{keys::Tenant, openai::chat::TemplateMessage};

/// Bytes of all conversations.
const MAX_BYTES: usize = 32 << 20;

/// Conversations.
const MAX_STORED: usize = 1024;

#[derive(Debug)]
struct Stored {
    id: String,
    tenant: Tenant,
    messages: Vec<TemplateMessage>,
    /// The answer as it was given.
    answer: Value,
    n_bytes: usize,
}

/// The newest conversations.
#[derive(Debug, Default)]
pub(crate) struct StoredResponses(Mutex<VecDeque<Stored>>);

impl StoredResponses {
    /// Keeps a conversation with its answer, and drops the oldest where there is no room. One that is larger than all of it
    /// is not kept.
    pub(crate) fn put(&self, id: &str, tenant: Tenant, messages: Vec<TemplateMessage>, answer: Value) {
        let n_bytes = messages.iter().map(message_bytes).sum::<usize>() + answer.to_string().len();
        if n_bytes > MAX_BYTES {
            return;
        }
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total: usize = stored.iter().map(|stored| stored.n_bytes).sum();
        while total + n_bytes > MAX_BYTES || stored.len() >= MAX_STORED {
            let Some(oldest) = stored.pop_front() else { break };
            total -= oldest.n_bytes;
        }
        stored.push_back(Stored {
            id: id.to_owned(),
            tenant,
            messages,
            answer,
            n_bytes,
        });
    }

    /// An answer as it was given, if it is still stored and is the tenant's.
    pub(crate) fn answer(&self, id: &str, tenant: Tenant) -> Option<Value> {
        let stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = (stored.iter()).find(|stored| stored.id == id && stored.tenant == tenant)?;
        Some(found.answer.clone())
    }

    /// Forgets an answer and its conversation. Returns whether it was stored and the tenant's.
    pub(crate) fn forget(&self, id: &str, tenant: Tenant) -> bool {
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let n_before = stored.len();
        stored.retain(|stored| stored.id != id || stored.tenant != tenant);
        stored.len() < n_before
    }

    /// The conversation up to an answer, if it is still stored and is the tenant's.
    pub(crate) fn get(&self, id: &str, tenant: Tenant) -> Option<Vec<TemplateMessage>> {
        let stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = stored
            .iter()
            .find(|stored| stored.id == id && stored.tenant == tenant)?;
        Some(found.messages.clone())
    }
}

fn message_bytes(message: &TemplateMessage) -> usize {
    let calls = message
        .tool_calls
        .as_ref()
        .map_or(0, |calls| calls.to_string().len());
    let parts = message
        .parts
        .iter()
        .filter_map(|part| part.pointer("/image_url/url")?.as_str());
    let images: usize = parts.map(str::len).sum();
    128 + images + message.content.len() + message.reasoning_content.as_ref().map_or(0, String::len) + calls
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

    #[test]
    fn the_oldest_make_room_and_tenants_are_apart() {
        let stored = StoredResponses::default();
        let tenant = Tenant::default();
        stored.put("first", tenant, said(MAX_BYTES / 2), Value::Null);
        stored.put("second", tenant, said(MAX_BYTES / 3), Value::Null);
        assert!(stored.get("first", tenant).is_some());
        assert!(stored.get("first", Tenant::of_key("other")).is_none());
        stored.put("third", tenant, said(MAX_BYTES / 3), Value::Null);
        assert!(stored.get("first", tenant).is_none());
        assert!(stored.get("second", tenant).is_some());
        stored.put("large", tenant, said(MAX_BYTES + 1), Value::Null);
        assert!(stored.get("large", tenant).is_none() && stored.get("third", tenant).is_some());
        for id in 0..2 * MAX_STORED {
            stored.put(&id.to_string(), tenant, said(1), Value::Null);
        }
        assert!(stored.get("0", tenant).is_none());
    }

    #[test]
    fn an_answer_is_found_and_forgotten_by_its_tenant_only() {
        let stored = StoredResponses::default();
        let (tenant, other) = (Tenant::default(), Tenant::of_key("other"));
        stored.put("a", tenant, said(1), json!({"id": "a"}));
        assert_eq!(stored.answer("a", tenant), Some(json!({"id": "a"})));
        assert_eq!(
            (stored.answer("a", other), stored.answer("b", tenant)),
            (None, None)
        );
        assert!(!stored.forget("a", other) && stored.forget("a", tenant) && !stored.forget("a", tenant));
        assert!(stored.answer("a", tenant).is_none() && stored.get("a", tenant).is_none());
        // An answer counts for what may be kept.
        stored.put("large", tenant, said(1), Value::from("a".repeat(MAX_BYTES)));
        assert!(stored.answer("large", tenant).is_none());
    }
}
