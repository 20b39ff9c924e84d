//! The model for requests that name none: the first of the right kind, as it was started or as its files say.
//!
//! The files are read after the start. Invariant: the choice does not depend on the time of a request; a
//! request that comes before enough was read waits for it.

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use tokenmill::{
    Model,
    load::{ModelFacts, Task},
};
use tokio::time::{sleep, timeout_at};

use super::{Many, Measured, ModelSpec, Models, Role};
use crate::ApiError;

/// How often a request looks whether enough was read.
const LOOK: Duration = Duration::from_millis(2);

/// The facts about a model that were read so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// Whether its files were read, with or without success.
    is_over: bool,
    /// The facts in its files.
    pub(super) facts: Option<ModelFacts>,
    /// Whether it takes images.
    pub(super) sees: bool,
    /// Whether it has a chat template, as far as is known.
    pub(super) has_chat_template: Option<bool>,
}

/// Facts about a model, as found at one time.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) facts: Option<ModelFacts>,
    pub(super) sees: bool,
    pub(super) has_chat_template: Option<bool>,
}

impl From<&Measured> for Found {
    fn from(measured: &Measured) -> Self {
        Self {
            facts: measured.facts.clone(),
            sees: measured.sees,
            has_chat_template: measured.has_chat_template,
        }
    }
}

impl From<&Model> for Found {
    fn from(model: &Model) -> Self {
        Self {
            facts: model.facts().cloned(),
            sees: model.sees(),
            has_chat_template: Some(model.words().template().is_some()),
        }
    }
}

impl Reading {
    /// Returns the role of the model; `None` until it is known.
    pub(super) fn role(&self, spec: &ModelSpec) -> Option<Role> {
        match (spec.role, self.facts.as_ref().map(|facts| facts.task)) {
            (Role::Chat, Some(Task::Text | Task::Decisions)) => Some(Role::Chat),
            (Role::Chat, Some(Task::Embeddings)) => Some(Role::Embedding),
            (Role::Chat, Some(Task::Ranks)) => Some(Role::Rank),
            (Role::Chat, None) => self.is_over.then_some(Role::Chat),
            (given, _) => Some(given),
        }
    }

    /// Whether the model scores options and writes no text. Chats without a name are for it only where no other model is for them.
    fn only_decides(&self) -> bool {
        self.facts
            .as_ref()
            .is_some_and(|facts| facts.task == Task::Decisions)
    }

    /// Whether the model was trained for decisions. Some such models write text as well.
    fn decides(&self) -> bool {
        self.facts
            .as_ref()
            .is_some_and(|facts| facts.decision_family.is_some())
    }
}

/// One more request without a name waits until it is dropped.
struct Nameless<'a>(&'a Many);

impl Drop for Nameless<'_> {
    fn drop(&mut self) {
        self.0.n_nameless.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Models {
    /// Waits until enough was read to know which model requests of a role without a name are for, at most until a time.
    ///
    /// # Errors
    /// [`ApiError::DeadlineExceeded`].
    pub(super) async fn wait_for_roles(
        &self,
        many: &Many,
        role: Role,
        until: Option<Instant>,
    ) -> Result<(), ApiError> {
        if many.candidate(role).is_ok() {
            return Ok(());
        }
        many.n_nameless.fetch_add(1, Ordering::AcqRel);
        let _waits = Nameless(many);
        many.bell.notify_all();
        let known = async {
            while many.candidate(role).is_err()
                && !many.has_ended.load(Ordering::Acquire)
                && !self.shutdown().has_begun()
            {
                sleep(LOOK).await;
            }
        };
        let Some(until) = until else {
            known.await;
            return Ok(());
        };
        timeout_at(until.into(), known)
            .await
            .map_err(|_| ApiError::DeadlineExceeded)
    }

    /// How long a request may wait for its model.
    pub(super) fn longest_wait(&self) -> Option<Duration> {
        let config = self.config();
        (config.queue_timeout.into_iter())
            .chain(config.request_timeout)
            .min()
    }
}

/// Which model it is depends on files that were not read yet.
struct NotRead;

impl Many {
    pub(super) fn readings(&self) -> Vec<Reading> {
        (self.readings.lock())
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn reading(&self, idx: usize) -> Reading {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        readings[idx].clone()
    }

    /// One more model, of which nothing was read.
    pub(super) fn add_reading(&self) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        readings.push(Reading::default());
    }

    /// Forgets the facts of a model whose files have changed.
    pub(super) fn forget_reading(&self, idx: usize) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        readings[idx] = Reading::default();
    }

    /// Stores the facts of a model: from its files, or once it was loaded. The default has none.
    pub(super) fn note_reading(&self, idx: usize, found: Found) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = &mut readings[idx];
        reading.is_over = true;
        reading.sees = found.sees;
        reading.has_chat_template = found.has_chat_template.or(reading.has_chat_template);
        reading.facts = found.facts.or(reading.facts.take());
    }

    /// The model of requests that name none, as far as is known: the first of its role that can be loaded, else one for chats. `None`
    /// where no model is served.
    pub(super) fn default_of(&self, role: Role) -> Option<usize> {
        let first = |role| self.in_order_for(role).into_iter().next();
        self.candidate(role).ok().flatten().or_else(|| first(role))
    }

    /// All models that are served, those first that requests of a role without a name are for: what was started for the role, what its files say is for it,
    /// what is for chats, and the rest; of each kind those first that can be loaded.
    pub(super) fn in_order_for(&self, role: Role) -> Vec<usize> {
        let catalog = self.catalog();
        let readings = self.readings();
        let mut all = self.present(&catalog);
        let (registry, now) = (self.lock(), Instant::now());
        all.sort_by_key(|&idx| {
            let spec = &catalog.specs()[idx];
            let found = readings[idx].role(spec);
            let is_chat = found.is_none_or(|found| found == Role::Chat);
            let is_made_for_it = match role {
                Role::Decision => is_chat && readings[idx].decides(),
                _ => found == Some(role) && !readings[idx].only_decides(),
            };
            let rank = if spec.role == role && role != Role::Chat {
                0
            } else if is_made_for_it {
                1
            } else if is_chat {
                2
            } else {
                3
            };
            (rank, registry.status(idx, now).failure.is_some())
        });
        all
    }

    /// The model of requests of a role that name none; `None` where none is for it.
    fn candidate(&self, role: Role) -> Result<Option<usize>, NotRead> {
        if role == Role::Decision {
            return match self.decider()? {
                Some(idx) => Ok(Some(idx)),
                None => self.candidate(Role::Chat),
            };
        }
        let catalog = self.catalog();
        let readings = self.readings();
        let present = self.present(&catalog);
        let specs = || present.iter().map(|&idx| (idx, &catalog.specs()[idx]));
        let given = specs().any(|(_, spec)| spec.role == role && role != Role::Chat);
        let (registry, now) = (self.lock(), Instant::now());
        let (mut failed, mut decider) = (None, None);
        for (idx, spec) in specs() {
            if given && spec.role != role {
                continue;
            }
            match readings[idx].role(spec) {
                None => return Err(NotRead),
                Some(found) if found != role => {}
                Some(_) if readings[idx].only_decides() => decider = decider.or(Some(idx)),
                Some(_) if registry.status(idx, now).failure.is_none() => return Ok(Some(idx)),
                Some(_) => failed = failed.or(Some(idx)),
            }
        }
        Ok(failed.or(decider))
    }

    /// The first model that was trained for decisions and can be loaded.
    fn decider(&self) -> Result<Option<usize>, NotRead> {
        let catalog = self.catalog();
        let readings = self.readings();
        let present = self.present(&catalog);
        let (registry, now) = (self.lock(), Instant::now());
        for idx in present {
            let found = readings[idx].role(&catalog.specs()[idx]).ok_or(NotRead)?;
            let is_for_it = match found {
                Role::Decision => true,
                Role::Chat => readings[idx].decides(),
                Role::Embedding | Role::Rank => false,
            };
            if is_for_it && registry.status(idx, now).failure.is_none() {
                return Ok(Some(idx));
            }
        }
        Ok(None)
    }
}
