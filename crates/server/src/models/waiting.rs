//! [`Models::acquire`]: a request waits for its model.
//!
//! Nothing else in this folder waits. Invariant: however often a request has to wait before its model takes
//! it, all of that together lasts no longer than one wait may.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout_at;

use super::{Choice, Kind, Lease, Many, Models, Purpose, lookup::Lookup};
use crate::ApiError;

impl Models {
    /// Waits until the model of a request is loaded, and holds it. If the load fails, the folder of models is read again, because the file
    /// may be gone: its name is then unknown, and a request without a name goes to another model.
    ///
    /// # Errors
    /// An unknown name, a model that cannot be loaded, and a wait that is too long or has no room.
    pub(crate) async fn acquire(&self, choice: &Choice, purpose: Purpose) -> Result<Lease, ApiError> {
        let until = self.longest_wait().map(|limit| Instant::now() + limit);
        let failure = match self.acquire_known(choice, purpose, until).await {
            Err(failure @ ApiError::ModelFailed { .. }) => failure,
            acquired => return acquired,
        };
        let Some(many) = self.many() else {
            return Err(failure);
        };
        let by_default = || many.default_of(choice.role);
        let before = by_default();
        let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.look_anew(rest.unwrap_or(Duration::MAX)).await;
        match &choice.model {
            Some(name) if many.find(name).is_none() && !self.common().answers_any_name => {
                Err(many.unknown(name))
            }
            None if by_default() != before => self.acquire_known(choice, purpose, until).await,
            _ => Err(failure),
        }
    }

    /// As [`Self::acquire`], with the known contents of the folder. All waits together end at `until`.
    async fn acquire_known(
        &self,
        choice: &Choice,
        purpose: Purpose,
        until: Option<Instant>,
    ) -> Result<Lease, ApiError> {
        let many = match &self.inner.kind {
            Kind::One(app) => return Ok(Lease::fixed(Arc::clone(app))),
            Kind::Many(many) => many,
        };
        if choice.model.is_none() {
            self.wait_for_roles(many, choice.role, until).await?;
        }
        let idx = self.find(choice.model.as_deref(), choice.role).await?;
        let asked = many.lock().ask(idx, purpose, Instant::now());
        let answer = match asked {
            Lookup::Runs(app) => {
                // Its files may have been replaced; the next request then gets the new ones.
                if many.spec(idx).is_of_folder {
                    self.begin_look();
                }
                return Ok(Lease::counted(self.clone(), idx, purpose, app));
            }
            Lookup::Refused(error) => return Err(error),
            Lookup::Waits(_) if self.shutdown().has_begun() => {
                return Err(ApiError::NotReady {
                    reason: "it is shutting down",
                });
            }
            Lookup::Waits(answer) => answer,
        };
        // Rung now for the request, and again if the request is given up: a load for it alone is then dropped.
        let _bell = Bell(many);
        many.bell.notify_all();
        let answered = match until {
            Some(until) => timeout_at(until.into(), answer)
                .await
                .map_err(|_| ApiError::DeadlineExceeded)?,
            None => answer.await,
        };
        answered.unwrap_or(Err(ApiError::NotReady {
            reason: "it is shutting down",
        }))
    }
}

/// Wakes the thread when it is dropped.
struct Bell<'a>(&'a Many);

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        self.0.bell.notify_all();
    }
}
