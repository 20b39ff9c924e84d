//! [`CudaBuffer`]: activations on the device, with their quantized twin inside.
//!
//! Invariant: a twin is returned only if its rows are the rows of the current values. An operation that writes values either writes the
//! twin too or marks it stale. (A replayed step calls none of these functions; a program writes a buffer before it reads it, so the
//! values left by a step have no effect.) Operations that produce rows quantize them while they write them, if they can; the next product
//! takes the twin, or has the rows quantized.
//!
//! ```text
//! read            values                          any operation's input
//! read_quantized  twin, made now where stale      a product's input
//! write           values; the twin is stale       an operation that does not quantize
//! write_both      values and twin, if there is one and the rows are groups of 32
//! leave_norm      nothing yet; the product that takes it writes both
//! ```

use std::cell::{Cell, Ref, RefCell, RefMut};

use tokenmill_backend::{Backend, BackendError, Norm};

use super::CudaBackend;

/// Number of values that are quantized together.
const GROUP: usize = 32;
/// Widest rows that have a twin. Wider rows are logits, which no matrix takes as input.
pub(super) const MAX_TWIN_WIDTH: usize = 1 << 16;

/// An activation buffer.
pub struct CudaBuffer {
    values: crate::Buffer<f32>,
    /// `None` where no product can take the rows.
    quantized: Option<RefCell<crate::QuantizedRows>>,
    /// Number and width of the rows for which the twin is current.
    fresh: Cell<Option<[usize; 2]>>,
    /// The norm that produces the rows, if the product that reads them is to compute it.
    norm: RefCell<Option<LeftNorm>>,
}

/// Describes a norm of one row that the product which reads it computes: its input and its output.
pub(super) struct LeftNorm {
    pub(super) hidden: crate::Buffer<f32>,
    pub(super) norm: Norm<crate::Buffer<f32>>,
    pub(super) values: crate::Buffer<f32>,
}

fn has_twin(width: usize) -> bool {
    width > 0 && width.is_multiple_of(GROUP) && width <= MAX_TWIN_WIDTH
}

impl CudaBuffer {
    pub(super) fn new(
        device: &crate::Device,
        max_rows: usize,
        width: usize,
    ) -> Result<Self, crate::CudaExecError> {
        let quantized = if has_twin(width) {
            Some(RefCell::new(crate::QuantizedRows::new(device, max_rows, width)?))
        } else {
            None
        };
        Ok(Self {
            values: device.alloc("activations", max_rows * width)?,
            quantized,
            fresh: Cell::new(None),
            norm: RefCell::new(None),
        })
    }

    /// Returns whether one row of `width` values can be left to the product that reads it.
    pub(super) fn can_leave(&self, width: usize) -> bool {
        self.quantized.is_some() && has_twin(width)
    }

    /// Leaves `norm` of `hidden`, a row, to the product that reads this buffer next, before anything else reads or writes one of the two.
    pub(super) fn leave_norm(&mut self, hidden: &Self, norm: &Norm<crate::Buffer<f32>>) {
        self.fresh.set(None);
        self.norm.replace(Some(LeftNorm {
            hidden: hidden.values.alias(),
            norm: Norm {
                kind: norm.kind,
                width: norm.width,
                weight: norm.weight.as_ref().map(crate::Buffer::alias),
                bias: norm.bias.as_ref().map(crate::Buffer::alias),
                eps: norm.eps,
            },
            values: self.values.alias(),
        }));
    }

    /// Takes the norm that was left to a product. The caller must compute the values and the twin.
    pub(super) fn take_norm(&self) -> Option<(LeftNorm, RefMut<'_, crate::QuantizedRows>)> {
        let left = self.norm.take()?;
        let twin = (self.quantized.as_ref()).expect("a norm is left where there is a twin alone");
        self.fresh.set(Some([1, left.norm.width]));
        Some((left, twin.borrow_mut()))
    }

    /// Returns the device memory of such a buffer.
    pub(super) fn device_bytes(max_rows: usize, width: usize) -> usize {
        let twin = if has_twin(width) {
            crate::QuantizedRows::device_bytes(max_rows, width)
        } else {
            0
        };
        crate::buffer_bytes::<f32>(max_rows * width) + twin
    }

    /// Returns the values.
    pub(super) fn read(&self) -> crate::View<'_, f32> {
        assert!(
            self.norm.borrow().is_none(),
            "a norm was left to a product, and another operation reads its rows"
        );
        self.values.view()
    }

    /// Returns the values in a view that keeps the memory alive.
    pub(super) fn share(&self) -> crate::SharedView<f32> {
        self.values.share()
    }

    /// Returns the quantized form of the first rows, which is made now if it is stale.
    pub(super) fn read_quantized(
        &self,
        ops: &crate::Ops,
        [n_rows, width]: [usize; 2],
    ) -> Result<Ref<'_, crate::QuantizedRows>, BackendError> {
        let Some(twin) = self.quantized.as_ref().filter(|_| has_twin(width)) else {
            return Err(BackendError::Unsupported {
                feature: format!("quantized weights with rows of {width} values"),
                device: CudaBackend::NAME,
            });
        };
        let is_fresh = (self.fresh.get())
            .is_some_and(|[n_fresh, fresh_width]| n_rows <= n_fresh && width == fresh_width);
        if !is_fresh {
            self.fresh.set(None);
            ops.quantize(n_rows, width, self.values.view(), twin.borrow_mut().view_mut())?;
            self.fresh.set(Some([n_rows, width]));
        }
        Ok(twin.borrow())
    }

    /// Returns the values for writing, and marks the twin stale.
    pub(super) fn write(&mut self) -> crate::ViewMut<'_, f32> {
        self.fresh.set(None);
        self.norm.take();
        self.values.view_mut()
    }

    /// Returns the values and, if there is one, the twin: the operation writes both, for as many rows of this
    /// width.
    pub(super) fn write_both(
        &mut self,
        [n_rows, width]: [usize; 2],
    ) -> (crate::ViewMut<'_, f32>, Option<crate::QuantizedMut<'_>>) {
        self.norm.take();
        let twin = self.quantized.as_mut().filter(|_| has_twin(width));
        self.fresh.set(twin.is_some().then_some([n_rows, width]));
        (self.values.view_mut(), twin.map(|twin| twin.get_mut().view_mut()))
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use super::*;
    use crate::driver::simulated;

    #[test]
    fn a_twin_is_made_again_only_where_it_is_stale() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let ops = crate::Ops::load(&device).unwrap();
        let mut buffer = CudaBuffer::new(&device, 4, 64).unwrap();
        device.upload_to(&[1.0; 4 * 64], &buffer.write()).unwrap();
        let quantizes = |buffer: &CudaBuffer, rows: [usize; 2]| {
            let before = device.n_launches();
            buffer.read_quantized(&ops, rows).unwrap();
            device.n_launches() - before
        };
        assert_eq!(quantizes(&buffer, [2, 64]), 1);
        assert_eq!(quantizes(&buffer, [2, 64]), 0);
        assert_eq!(quantizes(&buffer, [1, 64]), 0);
        assert_eq!(quantizes(&buffer, [3, 64]), 1, "more rows than there are");
        assert_eq!(quantizes(&buffer, [3, 32]), 1, "rows of another width");
        buffer.write();
        assert_eq!(quantizes(&buffer, [3, 32]), 1, "the values were written");
        buffer.write_both([2, 64]);
        assert_eq!(
            quantizes(&buffer, [2, 64]),
            0,
            "the operation wrote the twin as well"
        );
        buffer.write_both([2, 48]);
        let refused = buffer.read_quantized(&ops, [2, 48]).err();
        assert!(
            matches!(refused, Some(BackendError::Unsupported { .. })),
            "{refused:?}"
        );
    }
}
