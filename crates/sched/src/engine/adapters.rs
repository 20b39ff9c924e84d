//! The callers' side of adapters: adding one, copying one with another strength, and removing one while
//! requests run.
//!
//! Part of [`Engine`]. Invariant: a request may name an adapter only between its addition and its removal.

use std::hash::Hasher;

#[expect(
    deprecated,
    reason = "the one hash of the standard library that is said which it is, so that names can outlive a release"
)]
use std::hash::SipHasher;

use tokenmill_backend::{Adapter, AdapterId};

use crate::{
    engine::Engine,
    error::EngineError,
    plan::scheduler::adapters::AdaptersInUse,
    queue::{
        adapters::{AdapterCommand, Reply},
        mailbox::Command,
    },
    sync::{Arc, mpsc},
};

/// Returns a hash of an adapter's matrices (SipHash 2-4), the same in every process and every build.
fn hash_of(adapter: &Adapter) -> u64 {
    #[expect(deprecated, reason = "as where it is imported")]
    let mut hasher = SipHasher::new();
    let mut write = |bytes: &[u8]| {
        hasher.write(&(bytes.len() as u64).to_le_bytes());
        hasher.write(bytes);
    };
    for weight in &adapter.weights {
        write(weight.tensor.as_bytes());
        write(&weight.scale.to_le_bytes());
        for n in [weight.rank, weight.n_in, weight.n_out] {
            write(&(n as u64).to_le_bytes());
        }
        for matrix in [&weight.a, &weight.b] {
            write(matrix.ty.name().as_bytes());
            write(&matrix.bytes);
        }
    }
    hasher.finish()
}

impl Engine {
    /// Loads an adapter, whose changes are multiplied by `strength`, and waits until requests can use it
    /// through [`GenerateParams::adapter`](crate::GenerateParams::adapter). Running requests continue.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] if it does not fit the model or the device, or an error that the engine has
    /// ended.
    pub fn add_adapter(&self, adapter: Arc<Adapter>, strength: f32) -> Result<AdapterId, EngineError> {
        // Hash here rather than on the engine's thread, because there may be many bytes.
        let matrices = (self.config().page_store.as_ref()).map(|_| hash_of(&adapter));
        self.order_adapter(|id, reply| AdapterCommand::Add {
            id,
            adapter,
            strength,
            matrices,
            reply,
        })
    }

    /// Creates another adapter from the matrices of `from`, with its own strength.
    ///
    /// # Errors
    /// As [`Self::add_adapter`]; [`EngineError::UnknownAdapter`].
    pub fn copy_adapter(&self, from: AdapterId, strength: f32) -> Result<AdapterId, EngineError> {
        self.order_adapter(|id, reply| AdapterCommand::Copy {
            from,
            id,
            strength,
            reply,
        })
    }

    /// Accepts no more requests with an adapter. Requests that use it finish; then its memory and its cached
    /// pages are released.
    ///
    /// # Errors
    /// [`EngineError::UnknownAdapter`].
    pub fn remove_adapter(&self, id: AdapterId) -> Result<(), EngineError> {
        if self.mailbox().withdraw_adapter(id) {
            Ok(())
        } else {
            Err(EngineError::UnknownAdapter { id })
        }
    }

    /// Returns the adapters of unfinished requests.
    pub fn adapters_in_use(&self) -> AdaptersInUse {
        self.board().adapters_in_use()
    }

    fn order_adapter(
        &self,
        command: impl FnOnce(AdapterId, Reply) -> AdapterCommand,
    ) -> Result<AdapterId, EngineError> {
        let (reply, done) = mpsc::channel();
        let id = AdapterId::new(self.mailbox().next_adapter());
        self.mailbox().post(Command::Adapter(command(id, reply)));
        // No reply means that the engine has ended.
        done.recv().map_err(|_| EngineError::Stopped)??;
        self.mailbox().offer_adapter(id);
        Ok(id)
    }
}
