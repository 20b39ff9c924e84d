//! An answer as it comes.
//!
//! Invariant: dropping or cancelling a stream ends its generation; whoever reads it waits with the interpreter free.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::{prelude::*, sync::MutexExt};
use tokenmill::{
    TextStream,
    stream::{Canceller, Gathered, TextEvent},
};

use crate::{
    answer::{Answer, Piece},
    error,
    wait::wait,
};

/// An answer as it comes: an iterator of pieces, also for `async for`; `await` gives the whole answer.
#[pyclass(frozen, module = "tokenmill")]
pub(crate) struct Stream {
    reading: Mutex<Reading>,
    cancellers: Vec<Canceller>,
}

struct Reading {
    stream: TextStream,
    gathered: Option<Gathered>,
    answer: Option<Py<Answer>>,
}

impl Stream {
    pub(crate) fn new(stream: TextStream) -> Self {
        Self {
            cancellers: stream.cancellers(),
            reading: Mutex::new(Reading {
                gathered: Some(Gathered::new(stream.n_samples())),
                stream,
                answer: None,
            }),
        }
    }

    /// The reading end, waited for with the interpreter free where another thread has it.
    fn reading(&self, py: Python<'_>) -> MutexGuard<'_, Reading> {
        let locked = self.reading.lock_py_attached(py);
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads to the end, and gives the answers.
    pub(crate) fn answers(&self, py: Python<'_>) -> PyResult<Vec<Answer>> {
        self.reading(py).answers(py)
    }
}

impl Reading {
    /// Reads to the end, and gives the answers, once.
    fn answers(&mut self, py: Python<'_>) -> PyResult<Vec<Answer>> {
        while self.next(py)?.is_some() {}
        let gathered = self.gathered.take();
        let answers = gathered
            .map(Gathered::answers)
            .transpose()
            .map_err(error::request)?;
        Ok(answers
            .unwrap_or_default()
            .into_iter()
            .map(Answer::from)
            .collect())
    }

    /// The next piece; `None` at the end.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Piece>> {
        loop {
            let Some(event) = wait(py, |context| self.stream.poll_event(context))? else {
                return Ok(None);
            };
            let piece = match &event {
                TextEvent::Delta(delta) => Some(Piece::from(delta.clone())),
                TextEvent::Prefill(_) | TextEvent::Finished(_) | TextEvent::Failed { .. } => None,
            };
            if let Some(gathered) = &mut self.gathered {
                gathered.take(event).map_err(error::request)?;
            }
            if piece.is_some() {
                return Ok(piece);
            }
        }
    }
}

#[pymethods]
impl Stream {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Piece>> {
        self.reading(py).next(py)
    }

    fn __aiter__(this: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        this.py()
            .import("tokenmill._async_stream")?
            .call_method1("AsyncStream", (this,))
    }

    /// `await` reads what is left and gives the whole answer, while the event loop works for others.
    fn __await__(this: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        this.py()
            .import("tokenmill._async_stream")?
            .call_method1("answer_of", (this,))?
            .call_method0("__await__")
    }

    /// Reads what is left and gives the whole answer.
    fn answer(&self, py: Python<'_>) -> PyResult<Py<Answer>> {
        // Another thread may read it as well: the first keeps the answer for both.
        let mut reading = self.reading(py);
        if let Some(answer) = &reading.answer {
            return Ok(answer.clone_ref(py));
        }
        let answer = (reading.answers(py)?.into_iter().next())
            .ok_or_else(|| error::RequestError::new_err("the stream failed before"))?;
        let answer = Py::new(py, answer)?;
        reading.answer = Some(answer.clone_ref(py));
        Ok(answer)
    }

    /// Ends the generation; what came before stays readable.
    fn cancel(&self) {
        self.cancellers.iter().for_each(Canceller::cancel);
    }
}
