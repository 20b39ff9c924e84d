//! [`PlacedBuffer`]: activations that are on one side, on the other, or on both.
//!
//! Activations are the data that crosses the border between the sides. An operation reads and writes on its
//! own side. Values that it reads are copied there first, only as many as it reads, and only if they are not
//! there yet. Invariant: the values are on the side that wrote them last, and the other side has as many of
//! them as were copied since.

use std::cell::{Cell, Ref, RefCell};

use tokenmill_backend::{BackendError, Side, SplitOperations};

/// An activation buffer on each side that uses it.
pub struct PlacedBuffer<A, B> {
    pub(crate) host: Option<RefCell<A>>,
    pub(crate) device: Option<RefCell<B>>,
    /// The side that wrote last.
    home: Cell<Side>,
    /// Number of leading values that the other side has too.
    n_brought: Cell<usize>,
}

impl<A, B> PlacedBuffer<A, B> {
    pub(crate) fn new(host: Option<A>, device: Option<B>) -> Self {
        Self {
            home: Cell::new(if device.is_some() {
                Side::Device
            } else {
                Side::Host
            }),
            host: host.map(RefCell::new),
            device: device.map(RefCell::new),
            n_brought: Cell::new(0),
        }
    }

    /// Records that a side overwrites everything that is read from now on.
    pub(crate) fn written_on(&self, side: Side) {
        self.home.set(side);
        self.n_brought.set(0);
    }

    /// Returns the number of values to copy to a side before `n_values` are read there.
    pub(crate) fn n_missing(&self, side: Side, n_values: usize) -> usize {
        if self.home.get() == side || n_values <= self.n_brought.get() {
            0
        } else {
            n_values
        }
    }

    pub(crate) fn brought(&self, n_values: usize) {
        self.n_brought.set(n_values);
    }
}

/// Copies the first values of a buffer from one side to the other, in pieces.
pub(crate) fn copy<H: SplitOperations, D: SplitOperations>(
    hosts: (&mut H, &RefCell<H::Buffer>),
    devices: (&mut D, &RefCell<D::Buffer>),
    to: Side,
    n_values: usize,
) -> Result<(), BackendError> {
    let ((host, on_host), (device, on_device)) = (hosts, devices);
    let mut start = 0;
    while start < n_values {
        let range = start..n_values.min(start + PIECE);
        match to {
            Side::Host => device.show_values(&on_device.borrow(), range.clone(), &mut |values| {
                host.fill_values(&mut on_host.borrow_mut(), range.clone(), &mut |room| {
                    room.copy_from_slice(values);
                    Ok(())
                })
            })?,
            Side::Device => device.fill_values(&mut on_device.borrow_mut(), range.clone(), &mut |room| {
                host.show_values(&on_host.borrow(), range.clone(), &mut |values| {
                    room.copy_from_slice(values);
                    Ok(())
                })
            })?,
        }
        start = range.end;
    }
    Ok(())
}

/// Number of values copied at a time: the size of a device's staging memory.
pub(crate) const PIECE: usize = 1 << 20;

/// Access to one side's buffers.
pub(crate) trait Buffers<A, B> {
    type Own;

    fn shared<'a>(&self, buffer: &'a PlacedBuffer<A, B>) -> Result<Ref<'a, Self::Own>, BackendError>;

    fn own<'a>(&self, buffer: &'a mut PlacedBuffer<A, B>) -> Result<&'a mut Self::Own, BackendError>;
}

impl<A, B> Buffers<A, B> for crate::kept::OfHost {
    type Own = A;

    fn shared<'a>(&self, buffer: &'a PlacedBuffer<A, B>) -> Result<Ref<'a, A>, BackendError> {
        Ok(buffer.host.as_ref().ok_or_else(absent)?.borrow())
    }

    fn own<'a>(&self, buffer: &'a mut PlacedBuffer<A, B>) -> Result<&'a mut A, BackendError> {
        Ok(buffer.host.as_mut().ok_or_else(absent)?.get_mut())
    }
}

impl<A, B> Buffers<A, B> for crate::kept::OfDevice {
    type Own = B;

    fn shared<'a>(&self, buffer: &'a PlacedBuffer<A, B>) -> Result<Ref<'a, B>, BackendError> {
        Ok(buffer.device.as_ref().ok_or_else(absent)?.borrow())
    }

    fn own<'a>(&self, buffer: &'a mut PlacedBuffer<A, B>) -> Result<&'a mut B, BackendError> {
        Ok(buffer.device.as_mut().ok_or_else(absent)?.get_mut())
    }
}

/// Returns the error of a network that uses a buffer on a side for which it was not allocated.
pub(crate) fn absent() -> BackendError {
    BackendError::Unsupported {
        feature: "an operation on a side that has no buffer for it".to_owned(),
        device: "a split network",
    }
}
