//! [`Lease`]: a request's hold on a model, which is not unloaded during that time.
//!
//! The lease outlives the handler: an answer that is generated while it is sent keeps it to its end.
//! Invariants: a lease is returned once, when it is dropped, whatever happens to the request; a complete
//! answer holds no lease, however slowly it is read.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use hyper::body::{Frame, SizeHint};

use super::{Models, lookup::Purpose};
use crate::App;

/// A request's hold on a model.
#[derive(Debug)]
pub(crate) struct Lease {
    app: Arc<App>,
    hold: Option<Hold>,
}

/// Holds a use of a model, which is returned on drop; empty on a server with a single model.
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

    /// Keeps the lease until the response is generated or abandoned.
    pub(crate) fn until_made(self, response: Response) -> Response {
        let Some(hold) = self.hold else { return response };
        // A body of known length is already complete.
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        // The body's own reference goes before the hold does.
        drop(self.app);
        response.map(|body| {
            let held = Some((body, hold));
            Body::new(HeldBody { held })
        })
    }
}

/// Holds a model until the body ends or is dropped.
struct HeldBody {
    /// `None` after the end. The body is dropped before the lease.
    held: Option<(Body, Hold)>,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some((body, _)) = &mut self.held else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if frame.is_none() {
            self.held = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.held.as_ref().is_none_or(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.held.as_ref();
        held.map_or_else(|| SizeHint::with_exact(0), |(body, _)| body.size_hint())
    }
}
