//! [`Lease`]: a request's hold on a model, which is not unloaded meanwhile.
//!
//! Separate because the hold outlives the handler: an answer that streams has it to its last byte. Invariant: it is given back once,
//! by being dropped, whatever becomes of the request.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use hyper::body::{Frame, SizeHint};

use super::{Models, asking::Purpose};
use crate::App;

/// A request's hold on a model.
#[derive(Debug)]
pub(crate) struct Lease {
    app: Arc<App>,
    hold: Option<Hold>,
}

/// What is given back; nothing for the one model of a server that serves no other.
#[derive(Debug)]
struct Hold {
    models: Models,
    idx: usize,
    purpose: Purpose,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.models.release(self.idx, self.purpose);
    }
}

impl Lease {
    /// A hold on a model that is never unloaded.
    pub(super) fn fixed(app: Arc<App>) -> Self {
        Self { app, hold: None }
    }

    /// A hold that the registry has counted.
    pub(super) fn counted(models: Models, idx: usize, purpose: Purpose, app: Arc<App>) -> Self {
        let hold = Some(Hold { models, idx, purpose });
        Self { app, hold }
    }

    /// The model.
    pub(crate) fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Keeps the hold until the response is sent or given up.
    pub(crate) fn until_sent(self, response: Response) -> Response {
        let Some(hold) = self.hold else { return response };
        // The body's own reference goes before the hold does.
        drop(self.app);
        response.map(|body| Body::new(HeldBody { body, _hold: hold }))
    }
}

/// A body that holds a model until it is dropped.
struct HeldBody {
    body: Body,
    _hold: Hold,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
