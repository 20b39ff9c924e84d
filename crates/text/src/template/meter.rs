//! [`Meter`]: the fuel and memory that a rendering has used, and the text buffer that grows only as far as the meter allows.
//!
//! A template can double a string in every step of a loop, so counting steps alone bounds nothing. Invariant: every
//! string, sequence and mapping that evaluation makes holds a [`Lease`] of its size, taken before the bytes are.

use std::{cell::Cell, rc::Rc};

use super::{
    error::{Fault, TemplateLimit},
    trust::Trust,
    value::Text,
};

/// Bytes that one step of fuel may copy.
const BYTES_PER_STEP: usize = 128;

/// The fuel and the memory of one rendering.
#[derive(Debug)]
pub(super) struct Meter {
    fuel: Cell<u64>,
    live_bytes: Cell<usize>,
    max_fuel: u64,
    max_bytes: usize,
}

impl Meter {
    pub(super) fn new(max_fuel: u64, max_bytes: usize) -> Rc<Self> {
        Rc::new(Self {
            fuel: Cell::new(max_fuel),
            live_bytes: Cell::new(0),
            max_fuel,
            max_bytes,
        })
    }

    /// Takes `steps` of fuel.
    pub(super) fn burn(&self, steps: usize) -> Result<(), Fault> {
        match self.fuel.get().checked_sub(steps as u64) {
            Some(left) => {
                self.fuel.set(left);
                Ok(())
            }
            None => Err(Fault::Limit(TemplateLimit::Fuel(self.max_fuel))),
        }
    }

    /// Takes the fuel for looking at or copying `bytes`.
    pub(super) fn burn_bytes(&self, bytes: usize) -> Result<(), Fault> {
        self.burn(bytes / BYTES_PER_STEP)
    }

    /// Takes `bytes` of memory until the lease is dropped, and the fuel to fill them.
    pub(super) fn lease(self: &Rc<Self>, bytes: usize) -> Result<Lease, Fault> {
        let mut lease = Lease {
            meter: Rc::clone(self),
            bytes: 0,
        };
        lease.grow(bytes)?;
        Ok(lease)
    }

    /// Checks that `bytes` more would fit, before a buffer of that size is made outside a lease.
    pub(super) fn check_room(&self, bytes: usize) -> Result<(), Fault> {
        match self.live_bytes.get().checked_add(bytes) {
            Some(live) if live <= self.max_bytes => Ok(()),
            _ => Err(Fault::Limit(TemplateLimit::MemoryBytes(self.max_bytes))),
        }
    }
}

/// Memory taken from a [`Meter`], given back on drop.
#[derive(Debug)]
pub(super) struct Lease {
    meter: Rc<Meter>,
    bytes: usize,
}

impl Lease {
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Fault> {
        self.meter.check_room(bytes)?;
        self.meter.burn_bytes(bytes)?;
        self.meter.live_bytes.set(self.meter.live_bytes.get() + bytes);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.meter
            .live_bytes
            .set(self.meter.live_bytes.get() - self.bytes);
    }
}

/// A string under construction.
#[derive(Debug)]
pub(super) struct TextBuf {
    text: String,
    trust: Trust,
    lease: Lease,
}

impl TextBuf {
    pub(super) fn new(meter: &Rc<Meter>) -> Self {
        Self {
            text: String::new(),
            trust: Trust::default(),
            lease: Lease {
                meter: Rc::clone(meter),
                bytes: 0,
            },
        }
    }

    /// Appends text that is not trusted.
    pub(super) fn push_str(&mut self, text: &str) -> Result<(), Fault> {
        self.lease.grow(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Appends a text with its trust.
    pub(super) fn push_text(&mut self, text: &Text) -> Result<(), Fault> {
        self.push_with_trust(&text.body, &text.trust)
    }

    /// Appends a slice of a text's body, with its trust.
    pub(super) fn push_part(&mut self, whole: &Text, part: &str) -> Result<(), Fault> {
        self.push_with_trust(part, &whole.trust_of(part))
    }

    pub(super) fn push_with_trust(&mut self, text: &str, trust: &Trust) -> Result<(), Fault> {
        self.lease.grow(trust.n_bytes())?;
        let start = self.text.len();
        self.push_str(text)?;
        self.trust.append(trust, start);
        Ok(())
    }

    pub(super) fn push(&mut self, c: char) -> Result<(), Fault> {
        self.push_str(c.encode_utf8(&mut [0; 4]))
    }

    pub(super) fn push_repeated(&mut self, c: char, n: usize) -> Result<(), Fault> {
        self.lease.grow(n.saturating_mul(c.len_utf8()))?;
        self.text.extend(std::iter::repeat_n(c, n));
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns only the string.
    pub(super) fn into_string(self) -> String {
        self.text
    }

    /// Returns the string and its trust; their memory is given back.
    pub(super) fn into_parts(self) -> (String, Trust) {
        (self.text, self.trust)
    }
}
