//! [`Slots`]: the slots of llama.cpp's API, and the files that their conversations are saved to.
//!
//! Sequences have no fixed place in the engine. A slot here is a note of the newest conversation that ran
//! under its number, so that it can be saved, restored and erased by that number. Every request that
//! generates takes a slot. Invariants: no client sees or saves a conversation of another key; a file's name
//! never leaves the folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use serde::{Deserialize, Serialize};
use tokenmill::{
    Error, Model,
    sessions::{Session, SessionError, SessionFile, SessionSize},
};

use crate::{
    ApiError,
    config::{SessionFolder, keys::Tenant},
};

/// Longest name of a file in bytes: the limit of file systems, less the ending of an unfinished file's name.
const MAX_NAME_BYTES: usize = 200;

/// A prompt continues a conversation that has at least this part of the prompt in common with it, as in llama.cpp. Here it must
/// also begin with all that was asked before: chats of one template have their first tokens in common.
const MIN_SHARED_PERCENT: usize = 10;

/// The slots of a server.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Arc<Mutex<Vec<Slot>>>,
    /// Files are saved one at a time, of all models of a server, so that they do not fill the folder together.
    saving: Arc<Mutex<()>>,
}

/// The newest conversation that ran under a number.
#[derive(Clone, Debug, Default)]
struct Slot {
    tokens: Vec<u32>,
    /// Tokens of its prompt; 0 where it comes from a file.
    n_prompt: usize,
    tenant: Tenant,
    cache_salt: u64,
    /// Whether it ran with an adapter, whose results are not kept.
    has_adapter: bool,
    /// Whether it has images, which its tokens do not tell apart.
    has_images: bool,
    /// Requests that run in it now.
    n_running: usize,
    /// Grows with each use.
    used: u64,
}

/// The client that a prompt belongs to, and the properties of the prompt that decide which slot fits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) tenant: Tenant,
    pub(crate) cache_salt: u64,
    pub(crate) has_adapter: bool,
    pub(crate) has_images: bool,
}

/// A conversation on its way into a slot, where it is noted when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    slots: Arc<Mutex<Vec<Slot>>>,
    id: usize,
    conversation: Slot,
}

fn lock(slots: &Mutex<Vec<Slot>>) -> MutexGuard<'_, Vec<Slot>> {
    slots.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Slots {
    /// Makes as many empty slots as sequences run side by side. Models that share the lock `saving` save one
    /// after the other.
    pub(crate) fn new(n_slots: usize, saving: Arc<Mutex<()>>) -> Self {
        Self {
            slots: Arc::new(Mutex::new(vec![Slot::default(); n_slots.max(1)])),
            saving,
        }
    }

    /// The lock of those that save.
    pub(crate) fn saving(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.saving)
    }

    /// The slot for a prompt: the one that is requested, else the one whose conversation it continues, else the one that was used
    /// longest ago; those in which nothing runs come first.
    pub(crate) fn choose(&self, asked: Option<usize>, prompt: &[u32], asker: Asker) -> usize {
        let slots = lock(&self.slots);
        if let Some(id) = asked.filter(|&id| id < slots.len()) {
            return id;
        }
        let shared = |slot: &Slot| {
            let is_own = slot.tenant == asker.tenant
                && slot.cache_salt == asker.cache_salt
                && !slot.has_adapter
                && !asker.has_adapter;
            let pairs = slot.tokens.iter().zip(prompt);
            let n_shared = pairs.take_while(|(a, b)| a == b).count();
            let is_enough = n_shared >= slot.n_prompt && n_shared * 100 >= prompt.len() * MIN_SHARED_PERCENT;
            if is_own && is_enough { n_shared } else { 0 }
        };
        let of_slot = |(id, slot): (usize, &Slot)| {
            let is_idle = slot.n_running == 0;
            (
                is_idle,
                if is_idle { shared(slot) } else { 0 },
                std::cmp::Reverse(slot.used),
                id,
            )
        };
        // Ties go to the first slot.
        let best = slots
            .iter()
            .enumerate()
            .rev()
            .map(of_slot)
            .max_by_key(|&(idle, shared, used, _)| (idle, shared, used));
        best.map_or(0, |(.., id)| id)
    }

    /// Begins a conversation in a slot.
    pub(crate) fn begin(&self, id: usize, prompt: &[u32], asker: Asker) -> Running {
        let mut slots = lock(&self.slots);
        let used = slots.iter().map(|slot| slot.used).max().unwrap_or(0) + 1;
        slots[id].n_running += 1;
        slots[id].used = used;
        Running {
            slots: Arc::clone(&self.slots),
            id,
            conversation: Slot {
                tokens: prompt.to_vec(),
                n_prompt: prompt.len(),
                tenant: asker.tenant,
                cache_salt: asker.cache_salt,
                has_adapter: asker.has_adapter,
                has_images: asker.has_images,
                n_running: 0,
                used,
            },
        }
    }

    /// Whether a request runs in each.
    pub(crate) fn are_running(&self) -> Vec<bool> {
        lock(&self.slots).iter().map(|slot| slot.n_running > 0).collect()
    }

    /// The conversation of a tenant's slot; empty where another's is there.
    fn conversation(&self, id: usize, tenant: Tenant) -> Slot {
        let slots = lock(&self.slots);
        let slot = &slots[id];
        if slot.tenant == tenant {
            slot.clone()
        } else {
            Slot::default()
        }
    }

    /// The conversation of a tenant's slot, whose tokens alone say what the KV cache holds.
    ///
    /// # Errors
    /// A conversation with an adapter or images.
    fn plain_conversation(&self, id: usize, tenant: Tenant) -> Result<Slot, ApiError> {
        let refused = |reason| {
            Err(ApiError::NotImplemented {
                path: "/slots/{id}".to_owned(),
                reason,
            })
        };
        match self.conversation(id, tenant) {
            Slot {
                has_adapter: true, ..
            } => refused(
                "the conversation in this slot ran with a LoRA adapter, and the KV cache of an adapter is not kept",
            ),
            Slot { has_images: true, .. } => {
                refused("the conversation in this slot has images, which its tokens do not tell apart")
            }
            plain => Ok(plain),
        }
    }

    /// Empties a tenant's slot, and lets the cache forget its conversation. Gives its tokens.
    ///
    /// # Errors
    /// The end of the engine.
    pub(crate) fn erase(&self, id: usize, tenant: Tenant, model: &Model) -> Result<usize, ApiError> {
        let Slot {
            tokens,
            cache_salt,
            used,
            ..
        } = self.plain_conversation(id, tenant)?;
        if !tokens.is_empty() {
            model.engine().forget_prefix(&tokens, cache_salt)?;
            let slot = &mut lock(&self.slots)[id];
            // A newer conversation, perhaps another key's, stays.
            if slot.tenant == tenant && slot.used == used {
                slot.tokens.clear();
            }
        }
        Ok(tokens.len())
    }

    /// Saves a tenant's slot to a file of the folder.
    ///
    /// # Errors
    /// An empty slot, an unusable name, a full folder, or the error of saving.
    pub(crate) fn save(
        &self,
        id: usize,
        tenant: Tenant,
        model: &Model,
        folder: &SessionFolder,
        name: &str,
    ) -> Result<SessionSize, ApiError> {
        let path = path_of(folder, name)?;
        let Slot {
            mut tokens,
            cache_salt,
            ..
        } = self.plain_conversation(id, tenant)?;
        // Tokens beyond the context were computed after a context shift, so a different text precedes them.
        tokens.truncate(model.engine().limits().n_ctx);
        if tokens.is_empty() {
            return Err(ApiError::invalid("id_slot", "nothing has run in this slot"));
        }
        let notes = Notes {
            owner: tenant.owner(),
        };
        let session = Session {
            tokens,
            notes: serde_json::to_vec(&notes).map_err(|error| internal(&error))?,
            cache_salt,
        };
        let _saving = self.saving.lock();
        check_replaced(&path, tenant)?;
        let used_bytes = folder_bytes(&folder.path, &path).map_err(|error| internal(&error))?;
        let left_bytes = folder.max_bytes.saturating_sub(used_bytes);
        model
            .save_session_within(&path, &session, left_bytes)
            .map_err(|error| refusal(error, folder))
    }

    /// Restores a file of the folder to a slot.
    ///
    /// # Errors
    /// An unusable name, no such file of this tenant, or the error of restoring.
    pub(crate) fn restore(
        &self,
        id: usize,
        asker: Asker,
        model: &Model,
        folder: &SessionFolder,
        name: &str,
    ) -> Result<SessionSize, ApiError> {
        let path = path_of(folder, name)?;
        let file = SessionFile::open(&path).map_err(|error| refusal(error, folder))?;
        check_owner(&file, asker.tenant)?;
        let restored = model.restore_opened(file, &path, asker.cache_salt);
        let (session, size) = restored.map_err(|error| refusal(error, folder))?;
        let mut running = self.begin(id, &[], asker);
        running.conversation.tokens = session.tokens;
        Ok(size)
    }
}

impl Running {
    /// Takes in a token that was generated.
    pub(crate) fn push(&mut self, id: u32) {
        self.conversation.tokens.push(id);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let slot = &mut lock(&self.slots)[self.id];
        slot.n_running -= 1;
        // A later request may have ended before.
        if self.conversation.used >= slot.used {
            let n_running = slot.n_running;
            *slot = std::mem::take(&mut self.conversation);
            slot.n_running = n_running;
        }
    }
}

/// Metadata of a saved slot, besides tokens and memory.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Notes {
    /// A hash of the key that it was saved with; empty on a server without keys.
    #[serde(default)]
    owner: String,
}

/// Files of other keys are not there.
fn check_owner(file: &SessionFile, tenant: Tenant) -> Result<(), ApiError> {
    let notes: Notes = serde_json::from_slice(&file.header().notes).unwrap_or_default();
    if notes.owner == tenant.owner() {
        Ok(())
    } else {
        Err(no_such_file())
    }
}

/// Returns the error for a file that does not exist; the same one answers for another client's file.
fn no_such_file() -> ApiError {
    ApiError::invalid("filename", "there is no such file")
}

/// Refuses to replace a file, unless it is a session of the same key.
fn check_replaced(path: &Path, tenant: Tenant) -> Result<(), ApiError> {
    let is_own = match SessionFile::open(path) {
        Ok(file) => check_owner(&file, tenant).is_ok(),
        Err(Error::Session {
            source: SessionError::Io(error),
            ..
        }) if error.kind() == io::ErrorKind::NotFound => true,
        Err(_) => false,
    };
    if is_own {
        return Ok(());
    }
    Err(ApiError::invalid(
        "filename",
        "a file of this name exists and is not a session",
    ))
}

/// The path of a name within the folder.
fn path_of(folder: &SessionFolder, name: &str) -> Result<PathBuf, ApiError> {
    let refused = |reason: &str| Err(ApiError::invalid("filename", reason));
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return refused("expected a name of 1 to 200 bytes");
    }
    let is_plain = |c: char| !c.is_control() && !"/\\:*?\"<>|".contains(c);
    if !name.chars().all(is_plain) {
        return refused(
            "expected a name within the folder, without / \\ : * ? \" < > | and control characters",
        );
    }
    if name.starts_with(['.', ' ']) || name.ends_with(['.', ' ']) {
        return refused("expected a name that neither begins nor ends with a dot or a space");
    }
    Ok(folder.path.join(name))
}

/// Bytes of all files of the folder but `replaced`.
fn folder_bytes(folder: &Path, replaced: &Path) -> io::Result<u64> {
    let mut n_bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // A file may be gone since it was listed.
        if let Ok(metadata) = entry.metadata()
            && metadata.is_file()
            && entry.path() != replaced
        {
            n_bytes += metadata.len();
        }
    }
    Ok(n_bytes)
}

fn internal(error: &impl std::error::Error) -> ApiError {
    ApiError::Internal {
        reason: error.to_string(),
    }
}

/// Returns the error that a client gets when a session was not saved or restored.
fn refusal(error: Error, folder: &SessionFolder) -> ApiError {
    let Error::Session { source, .. } = error else {
        return error.into();
    };
    match source {
        SessionError::NoSpace { n_bytes, .. } => ApiError::StorageFull {
            reason: format!(
                "the session takes {n_bytes} bytes, and the folder may hold {} in all",
                folder.max_bytes
            ),
        },
        SessionError::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            ApiError::invalid("filename", "there is no such file")
        }
        SessionError::Io(error) if error.kind() == io::ErrorKind::StorageFull => ApiError::StorageFull {
            reason: "the disk is full".to_owned(),
        },
        SessionError::Io(error) => internal(&error),
        SessionError::Engine(tokenmill_sched::EngineError::NoRoomForPrefix { .. }) => ApiError::Busy {
            reason: "the KV cache has no room for the session while other requests run; try again later",
        },
        SessionError::Engine(error) => error.into(),
        SessionError::Unidentified | SessionError::NotReadable => ApiError::NotImplemented {
            path: "/slots/{id}".to_owned(),
            reason: "sessions of this model cannot be kept",
        },
        other => ApiError::invalid("filename", other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(key: &str) -> Asker {
        let tenant = Tenant::of_key(key);
        Asker {
            tenant,
            cache_salt: tenant.cache_salt(None),
            has_adapter: false,
            has_images: false,
        }
    }

    #[test]
    fn a_name_stays_in_the_folder() {
        let folder = SessionFolder {
            path: PathBuf::from("/sessions"),
            max_bytes: 1,
        };
        for name in ["a", "a.bin", "Gespräch 3", "a..b"] {
            let path = path_of(&folder, name).expect(name);
            assert_eq!(path.parent(), Some(&*folder.path), "{name}");
        }
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for name in [
            "",
            ".",
            "..",
            "../a",
            "/etc/passwd",
            "a/b",
            "a\\b",
            "a\0b",
            "a\nb",
            ".hidden",
            "a.",
            " a",
            "C:a",
            &long,
        ] {
            assert!(path_of(&folder, name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_conversation_with_an_adapter_is_continued_by_none() {
        let slots = Slots::new(2, Arc::default());
        let with_adapter = Asker {
            has_adapter: true,
            has_images: true,
            ..asker("k")
        };
        let id = slots.choose(None, &[1, 2, 3], with_adapter);
        drop(slots.begin(id, &[1, 2, 3], with_adapter));
        let kept = slots.conversation(id, Tenant::of_key("k"));
        assert!(kept.has_adapter && kept.has_images);
        assert_ne!(slots.choose(None, &[1, 2, 3, 4], asker("k")), id);
    }

    #[test]
    fn only_a_session_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert!(check_replaced(&path, Tenant::of_key("k")).is_ok());
        fs::write(&path, "somebody's own").unwrap();
        assert!(check_replaced(&path, Tenant::of_key("k")).is_err());
    }

    #[test]
    fn a_prompt_goes_to_the_slot_that_it_continues() {
        let slots = Slots::new(3, Arc::default());
        let run = |prompt: &[u32], key: &str, asked| {
            let id = slots.choose(asked, prompt, asker(key));
            let mut running = slots.begin(id, prompt, asker(key));
            running.push(99);
            id
        };
        let first = run(&[1, 2, 3], "k", None);
        let second = run(&[7, 8, 9], "k", None);
        assert_eq!((first, second), (0, 1));
        assert_eq!(run(&[1, 2, 3, 99, 4], "k", None), first);
        assert_eq!(run(&[7, 8], "k", Some(first)), first);
        assert_eq!(run(&[1, 2, 5], "k", Some(17)), 2, "there is no such slot");
        assert_eq!(slots.conversation(first, Tenant::of_key("k")).tokens, [7, 8, 99]);
        assert_eq!(slots.conversation(first, Tenant::of_key("l")).tokens, [0; 0]);
        // A conversation of another key is not continued, and a running one is left alone.
        let running = slots.begin(second, &[7, 8, 9, 99], asker("k"));
        assert_ne!(run(&[7, 8, 9, 99], "k", None), second);
        assert_eq!(slots.are_running().iter().filter(|running| **running).count(), 1);
        drop(running);
        assert_eq!(
            slots.conversation(second, Tenant::of_key("k")).tokens,
            [7, 8, 9, 99]
        );
    }
}
