//! [`QuantizedForms`]: which activations are also there in the form that quantized weights are multiplied with.
//!
//! Separate because it is bookkeeping and no operation. Operations that make rows quantize them on the way; the next
//! product takes that form, or has the rows quantized. Two places suffice: a product reads one and may write the other.
//! Invariant: a form is given out only if its rows have not changed since.

use tokenmill_backend::{Backend, BackendError};

/// Two places for quantized rows.
pub(super) struct QuantizedForms {
    places: [Place; 2],
    widest: usize,
    /// The place used last; the other is written next.
    newest: usize,
}

struct Place {
    rows: crate::QuantizedRows,
    /// The buffer whose rows it holds, and their width.
    holds: Option<(usize, usize)>,
}

impl QuantizedForms {
    pub(super) fn new(
        device: &crate::Device,
        max_rows: usize,
        widest: usize,
    ) -> Result<Self, crate::CudaExecError> {
        let place = || -> Result<Place, crate::CudaExecError> {
            Ok(Place {
                rows: crate::QuantizedRows::new(device, max_rows, widest)?,
                holds: None,
            })
        };
        Ok(Self {
            places: [place()?, place()?],
            widest,
            newest: 0,
        })
    }

    pub(super) fn device_bytes(max_rows: usize, widest: usize) -> usize {
        2 * crate::QuantizedRows::device_bytes(max_rows, widest)
    }

    /// Notes that a buffer's rows change.
    pub(super) fn forget(&mut self, buffer_id: usize) {
        for place in &mut self.places {
            if place.holds.is_some_and(|(held, _)| held == buffer_id) {
                place.holds = None;
            }
        }
    }

    pub(super) fn forget_all(&mut self) {
        for place in &mut self.places {
            place.holds = None;
        }
    }

    /// Where an operation that makes rows of a buffer also quantizes them; `None` where it need not. `input` is the place
    /// that it reads.
    pub(super) fn of_new_rows(
        &mut self,
        buffer_id: usize,
        width: usize,
        input: Option<usize>,
    ) -> Option<crate::QuantizedMut<'_>> {
        self.forget(buffer_id);
        if !width.is_multiple_of(32) || width > self.widest {
            return None;
        }
        self.newest = 1 - input.unwrap_or(self.newest);
        let place = &mut self.places[self.newest];
        place.holds = Some((buffer_id, width));
        Some(place.rows.view_mut())
    }

    /// The quantized form of a buffer's rows, made now if it is not there.
    pub(super) fn of(
        &mut self,
        ops: &crate::Ops,
        buffer_id: usize,
        values: crate::View<'_, f32>,
        [n_rows, width]: [usize; 2],
    ) -> Result<crate::QuantizedView<'_>, BackendError> {
        let held = self.place_of(buffer_id, width);
        let index = if let Some(index) = held {
            index
        } else {
            let rows = self.of_new_rows(buffer_id, width, None);
            let rows = rows.ok_or_else(|| BackendError::Unsupported {
                feature: format!("quantized weights with rows of {width} values"),
                device: super::CudaBackend::NAME,
            })?;
            ops.quantize(n_rows, width, values, rows)?;
            self.newest
        };
        Ok(self.places[index].rows.view())
    }

    /// The form of the rows of `input_id`, where it is there, and where to quantize the rows of `output_id`.
    pub(super) fn of_both(
        &mut self,
        input_id: usize,
        output_id: usize,
        output_width: usize,
    ) -> (Option<crate::QuantizedView<'_>>, Option<crate::QuantizedMut<'_>>) {
        let holds = |place: &Place| place.holds.is_some_and(|(held, _)| held == input_id);
        let Some(input) = self.places.iter().position(holds) else {
            return (None, self.of_new_rows(output_id, output_width, None));
        };
        let writes = self.of_new_rows(output_id, output_width, Some(input)).is_some();
        let [first, second] = &mut self.places;
        let (read, write) = if input == 0 {
            (first, second)
        } else {
            (second, first)
        };
        (Some(read.rows.view()), writes.then(|| write.rows.view_mut()))
    }

    fn place_of(&self, buffer_id: usize, width: usize) -> Option<usize> {
        (self.places.iter()).position(|place| place.holds == Some((buffer_id, width)))
    }
}
