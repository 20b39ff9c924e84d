//! Loads and stores: the addresses of a warp, their space, and registers to and from words.

use super::{BlockRunner, FULL, Stop, Warp, lanes_of};
use crate::{
    FindingKind,
    lanes::{LANES, Lanes32, Lanes64},
    op::{Address, AnyReg, Order},
    types::{Space, Ty, resolve_generic},
};

/// An access of a warp: the same number of bytes in each lane of `mask`.
#[derive(Clone, Copy)]
pub(super) struct WarpAccess<'a> {
    pub(super) addresses: &'a Lanes64,
    pub(super) mask: u32,
    /// Bytes of one element: 1, 2, 4 or 8.
    pub(super) element_bytes: u32,
    /// Elements of a lane.
    pub(super) n: u32,
    pub(super) order: Order,
    pub(super) pc: u32,
}

impl WarpAccess<'_> {
    pub(super) fn bytes(&self) -> u32 {
        self.element_bytes * self.n
    }
}

/// The bytes of each lane as words: element `i` of up to 4 bytes in word `i`, of 8 bytes in words `2i` and `2i + 1`.
pub(super) type LaneWords = [Lanes32; 4];

impl Warp {
    pub(super) fn addresses(&self, at: Address) -> Lanes64 {
        let mut addresses = [0; LANES];
        // `map` on an array of this size is a call, which is not vectorized.
        match at.base {
            AnyReg::R32(base) => {
                for (address, base) in addresses.iter_mut().zip(self.r32(base)) {
                    *address = u64::from(base.wrapping_add(at.offset as u32));
                }
            }
            AnyReg::R64(base) => {
                for (address, base) in addresses.iter_mut().zip(self.r64(base)) {
                    *address = base.wrapping_add(at.offset as u64);
                }
            }
        }
        addresses
    }
}

/// Splits generic addresses by space; each group has offsets within its space.
pub(super) fn by_space(space: Space, addresses: &Lanes64, mask: u32) -> Vec<(Space, Lanes64, u32)> {
    let mut groups: Vec<(Space, Lanes64, u32)> = Vec::with_capacity(1);
    for lane in lanes_of(mask) {
        let (space, offset) = match space {
            Space::Generic => resolve_generic(addresses[lane]),
            space => (space, addresses[lane]),
        };
        let index = groups
            .iter()
            .position(|group| group.0 == space)
            .unwrap_or_else(|| {
                groups.push((space, [0; LANES], 0));
                groups.len() - 1
            });
        groups[index].1[lane] = offset;
        groups[index].2 |= 1 << lane;
    }
    groups
}

impl BlockRunner<'_> {
    pub(super) fn load(
        &mut self,
        warp: &mut Warp,
        at: Address,
        ty: Ty,
        order: Order,
        (d, narrow): (&[AnyReg], &[bool]),
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = warp.addresses(at);
        let mut words: LaneWords = [[0; LANES]; 4];
        let access = WarpAccess {
            addresses: &addresses,
            mask,
            element_bytes: ty.bytes(),
            n: d.len() as u32,
            order,
            pc,
        };
        self.check_alignment(warp, at.space, &access)?;
        match at.space {
            Space::Global => self.load_global(warp, &access, &mut words)?,
            Space::Shared => self.load_shared(warp, &access, &mut words)?,
            Space::Local => self.load_local(warp, &access, &mut words)?,
            Space::Generic => {
                for (space, addresses, mask) in by_space(at.space, &addresses, mask) {
                    let access = WarpAccess {
                        addresses: &addresses,
                        mask,
                        ..access
                    };
                    match space {
                        Space::Shared => self.load_shared(warp, &access, &mut words)?,
                        Space::Local => self.load_local(warp, &access, &mut words)?,
                        _ => self.load_global(warp, &access, &mut words)?,
                    }
                }
            }
        }
        if order.is_strong() {
            self.note_poll(warp, &access, &words);
        }
        for (index, (&d, &is_narrow)) in d.iter().zip(narrow).enumerate() {
            match d {
                AnyReg::R32(d) if ty.bytes() == 4 || !matches!(ty, Ty::S8 | Ty::S16) => {
                    warp.set32(d, &words[index], mask);
                }
                AnyReg::R64(d) if ty.bytes() == 8 => {
                    let (low, high) = (&words[2 * index], &words[2 * index + 1]);
                    let mut value = [0; LANES];
                    for lane in 0..LANES {
                        value[lane] = u64::from(high[lane]) << 32 | u64::from(low[lane]);
                    }
                    warp.set64(d, &value, mask);
                }
                _ => {
                    let value = words[index].map(|bits| extend(ty, bits, is_narrow));
                    warp.set_any(d, &value, mask);
                }
            }
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        warp: &mut Warp,
        at: Address,
        ty: Ty,
        order: Order,
        a: &[AnyReg],
        mask: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = warp.addresses(at);
        let mut words: LaneWords = [[0; LANES]; 4];
        for (index, &a) in a.iter().enumerate() {
            if ty.bytes() == 8 {
                let value = warp.any(a);
                words[2 * index] = value.map(|value| value as u32);
                words[2 * index + 1] = value.map(|value| (value >> 32) as u32);
            } else {
                words[index] = match a {
                    AnyReg::R32(a) => *warp.r32(a),
                    AnyReg::R64(a) => warp.r64(a).map(|value| value as u32),
                };
            }
        }
        let access = WarpAccess {
            addresses: &addresses,
            mask,
            element_bytes: ty.bytes(),
            n: a.len() as u32,
            order,
            pc,
        };
        self.check_alignment(warp, at.space, &access)?;
        if !matches!(at.space, Space::Shared | Space::Local) {
            warp.polls.clear();
        }
        match at.space {
            Space::Global => self.store_global(warp, &access, &words),
            Space::Shared => self.store_shared(warp, &access, &words),
            Space::Local => self.store_local(warp, &access, &words),
            Space::Generic => {
                for (space, addresses, mask) in by_space(at.space, &addresses, mask) {
                    let access = WarpAccess {
                        addresses: &addresses,
                        mask,
                        ..access
                    };
                    match space {
                        Space::Shared => self.store_shared(warp, &access, &words)?,
                        Space::Local => self.store_local(warp, &access, &words)?,
                        _ => self.store_global(warp, &access, &words)?,
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn check_alignment(
        &mut self,
        warp: &Warp,
        space: Space,
        access: &WarpAccess<'_>,
    ) -> Result<(), Stop> {
        let bytes = access.bytes();
        let low_bits = u64::from(bytes - 1);
        if access.mask == FULL
            && access.addresses.iter().fold(0, |all, address| all | address) & low_bits == 0
        {
            return Ok(());
        }
        let Some(lane) = lanes_of(access.mask).find(|&lane| access.addresses[lane] & low_bits != 0) else {
            return Ok(());
        };
        let kind = FindingKind::Misaligned {
            space,
            address: access.addresses[lane],
            bytes,
        };
        self.find(warp.index, lane as u32, access.pc, kind);
        Err(Stop)
    }

    fn load_local(
        &mut self,
        warp: &mut Warp,
        access: &WarpAccess<'_>,
        words: &mut LaneWords,
    ) -> Result<(), Stop> {
        let bytes = access.bytes();
        for lane in lanes_of(access.mask) {
            let address = access.addresses[lane];
            let Some(index) = warp.local.index(lane, address, bytes as usize) else {
                return Err(self.out_of_bounds(warp.index, lane, access.pc, Space::Local, address, bytes));
            };
            if self.context.checks.uninitialized && !warp.local.is_written(index, bytes as usize) {
                let kind = FindingKind::UninitializedRead {
                    space: Space::Local,
                    address,
                    bytes,
                };
                self.find(warp.index, lane as u32, access.pc, kind);
            }
            for element in 0..access.n as usize {
                let element_bytes = access.element_bytes as usize;
                let value = warp.local.read(index + element * element_bytes, element_bytes);
                if element_bytes == 8 {
                    words[2 * element][lane] = value as u32;
                    words[2 * element + 1][lane] = (value >> 32) as u32;
                } else {
                    words[element][lane] = value as u32;
                }
            }
        }
        Ok(())
    }

    fn store_local(
        &mut self,
        warp: &mut Warp,
        access: &WarpAccess<'_>,
        words: &LaneWords,
    ) -> Result<(), Stop> {
        let bytes = access.bytes();
        for lane in lanes_of(access.mask) {
            let address = access.addresses[lane];
            let Some(index) = warp.local.index(lane, address, bytes as usize) else {
                return Err(self.out_of_bounds(warp.index, lane, access.pc, Space::Local, address, bytes));
            };
            for element in 0..access.n as usize {
                let element_bytes = access.element_bytes as usize;
                let value = if element_bytes == 8 {
                    u64::from(words[2 * element + 1][lane]) << 32 | u64::from(words[2 * element][lane])
                } else {
                    u64::from(words[element][lane])
                };
                warp.local
                    .write(index + element * element_bytes, element_bytes, value);
            }
        }
        Ok(())
    }
}

/// Extends a loaded element to its register: signed types by their sign, to 16 bits in a 16-bit register.
fn extend(ty: Ty, bits: u32, is_narrow: bool) -> u64 {
    let value = match ty {
        Ty::S8 => i64::from(bits as i8),
        Ty::S16 => i64::from(bits as i16),
        Ty::S32 => i64::from(bits as i32),
        _ => return u64::from(bits),
    };
    if is_narrow {
        u64::from(value as u16)
    } else {
        value as u64
    }
}
