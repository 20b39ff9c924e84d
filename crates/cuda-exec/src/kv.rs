//! [`KvStore`]: keys and values in pages on the device, with a host tier in pinned memory.
//!
//! Separate from attention, which reads it. A layer has two arrays, keys and values, `[n_pages, n_kv_heads, 16, row]`
//! with a row rounded up to 8 numbers, so a page of a layer is one run of bytes (`kernels/kv.cuh`). Pages move on the
//! transfer stream beside the computation. Invariant: moves come after the work queued before them, and the work queued
//! after [`KvStore::await_pages`] named a page comes after the moves of that page.

use crate::{
    Buffer, CudaExecError, Device, Fence, Pinned, Stream, View, ViewMut, error::Result, ops::check_head_dims,
};

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 16;

/// How keys and values are stored; the values are the order in which [`Ops`](crate::Ops) keeps its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    F16 = 0,
    /// Exact.
    F32 = 1,
}

impl KvType {
    fn element_bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// One layer's heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a key head.
    pub dim_k: usize,
    /// Width of a value head.
    pub dim_v: usize,
}

impl KvShape {
    /// Bytes of a page's keys and of its values.
    fn page_bytes(self, ty: KvType) -> [usize; 2] {
        [self.dim_k, self.dim_v]
            .map(|dim| self.n_kv_heads * PAGE_TOKENS * dim.next_multiple_of(8) * ty.element_bytes())
    }
}

/// A move of one page, all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageMove {
    /// Within the device.
    Duplicate {
        /// Page to read.
        from: usize,
        /// Page to write.
        to: usize,
    },
    /// To the host tier.
    Download {
        /// Page to read.
        page: usize,
        /// Host page to write.
        host_page: usize,
    },
    /// From the host tier.
    Upload {
        /// Host page to read.
        host_page: usize,
        /// Page to write.
        page: usize,
    },
}

#[derive(Debug)]
struct Layer {
    shape: KvShape,
    k: Buffer<u8>,
    v: Buffer<u8>,
}

/// A layer's pages, to read.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer<'a> {
    pub(crate) ty: KvType,
    pub(crate) shape: KvShape,
    pub(crate) k: View<'a, u8>,
    pub(crate) v: View<'a, u8>,
}

/// A layer's pages, to write.
#[derive(Debug)]
pub struct KvLayerMut<'a> {
    pub(crate) ty: KvType,
    pub(crate) shape: KvShape,
    pub(crate) k: ViewMut<'a, u8>,
    pub(crate) v: ViewMut<'a, u8>,
}

/// Keys and values of all layers.
#[derive(Debug)]
pub struct KvStore {
    device: Device,
    ty: KvType,
    layers: Vec<Layer>,
    n_pages: usize,
    host_tier: Pinned<u8>,
    n_host_pages: usize,
    page_bytes: usize,
    /// Pages of moves that the compute stream was not yet told to wait for.
    is_moving: Vec<bool>,
    before_moves: Fence,
    after_moves: Fence,
}

impl KvStore {
    /// Allocates `n_pages` on the device and `n_host_pages` in pinned memory, all zero.
    ///
    /// # Errors
    /// [`CudaExecError::OutOfMemory`], [`CudaExecError::Unsupported`] where a head is too wide, or the driver's.
    pub fn new(
        device: &Device,
        ty: KvType,
        shapes: &[KvShape],
        n_pages: usize,
        n_host_pages: usize,
    ) -> Result<Self> {
        let mut layers = Vec::with_capacity(shapes.len());
        for &shape in shapes {
            check_head_dims(shape.dim_k, shape.dim_v)?;
            let [k_bytes, v_bytes] = shape.page_bytes(ty);
            let zeroed = |n_bytes| -> Result<Buffer<u8>> {
                let mut buffer = device.alloc("keys and values", n_bytes)?;
                // A page that is moved before it is full is whole nevertheless.
                device.zero(Stream::Compute, &buffer.view_mut())?;
                Ok(buffer)
            };
            layers.push(Layer {
                shape,
                k: zeroed(k_bytes * n_pages)?,
                v: zeroed(v_bytes * n_pages)?,
            });
        }
        let page_bytes = Self::page_bytes(ty, shapes);
        Ok(Self {
            device: device.clone(),
            ty,
            layers,
            n_pages,
            host_tier: device.alloc_pinned(n_host_pages * page_bytes)?,
            n_host_pages,
            page_bytes,
            is_moving: vec![false; n_pages],
            before_moves: device.fence()?,
            after_moves: device.fence()?,
        })
    }

    /// Says whether kernels take heads of these shapes.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`](crate::CudaExecError::Unsupported) where a head is too wide.
    pub fn check_shapes(shapes: &[KvShape]) -> Result<()> {
        shapes
            .iter()
            .try_for_each(|shape| check_head_dims(shape.dim_k, shape.dim_v))
    }

    /// Bytes of a page, all layers.
    pub fn page_bytes(ty: KvType, shapes: &[KvShape]) -> usize {
        shapes.iter().flat_map(|shape| shape.page_bytes(ty)).sum()
    }

    /// A layer, to read.
    pub fn layer(&self, layer_idx: usize) -> KvLayer<'_> {
        let layer = &self.layers[layer_idx];
        KvLayer {
            ty: self.ty,
            shape: layer.shape,
            k: layer.k.view(),
            v: layer.v.view(),
        }
    }

    /// A layer, to write.
    pub fn layer_mut(&mut self, layer_idx: usize) -> KvLayerMut<'_> {
        let layer = &mut self.layers[layer_idx];
        KvLayerMut {
            ty: self.ty,
            shape: layer.shape,
            k: layer.k.view_mut(),
            v: layer.v.view_mut(),
        }
    }

    /// Queues moves, in order, behind the work queued so far.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`] for a page that there is not, before anything is moved; or the driver's.
    pub fn move_pages(&mut self, moves: &[PageMove]) -> Result<()> {
        for page_move in moves {
            self.check(*page_move)?;
        }
        self.before_moves.record(Stream::Compute)?;
        self.before_moves.hold(Stream::Transfer)?;
        for &page_move in moves {
            self.queue(page_move)?;
            let (PageMove::Duplicate { to: page, .. }
            | PageMove::Download { page, .. }
            | PageMove::Upload { page, .. }) = page_move;
            self.is_moving[page] = true;
            if let PageMove::Duplicate { from, .. } = page_move {
                self.is_moving[from] = true;
            }
        }
        self.after_moves.record(Stream::Transfer)
    }

    /// Lets the work queued from now on wait for the moves, if any of them touches one of `pages`. Numbers that are no
    /// page are passed over.
    ///
    /// # Errors
    /// The driver's.
    pub fn await_pages(&mut self, pages: &[u32]) -> Result<()> {
        let is_moving = |&page: &u32| self.is_moving.get(page as usize).copied().unwrap_or(false);
        if pages.iter().any(is_moving) {
            self.after_moves.hold(Stream::Compute)?;
            self.is_moving.fill(false);
        }
        Ok(())
    }

    fn check(&self, page_move: PageMove) -> Result<()> {
        let inside = |page: usize, len: usize| {
            if page < len {
                return Ok(());
            }
            Err(CudaExecError::Bounds {
                range: page..page.saturating_add(1),
                len,
            })
        };
        match page_move {
            PageMove::Duplicate { from, to } => {
                inside(from, self.n_pages).and_then(|()| inside(to, self.n_pages))
            }
            PageMove::Download { page, host_page } | PageMove::Upload { host_page, page } => {
                inside(page, self.n_pages).and_then(|()| inside(host_page, self.n_host_pages))
            }
        }
    }

    fn queue(&mut self, page_move: PageMove) -> Result<()> {
        let Self {
            device,
            ty,
            layers,
            host_tier,
            page_bytes,
            ..
        } = self;
        let mut offset = 0;
        for layer in layers {
            let bytes = layer.shape.page_bytes(*ty);
            for (buffer, n_bytes) in [&mut layer.k, &mut layer.v].into_iter().zip(bytes) {
                let of = |page: usize| page * n_bytes..(page + 1) * n_bytes;
                let on_host = |host_page: usize| {
                    let start = host_page * *page_bytes + offset;
                    start..start + n_bytes
                };
                match page_move {
                    PageMove::Duplicate { from, to } if from == to => {}
                    PageMove::Duplicate { from, to } => {
                        let source = buffer.share();
                        let target = buffer.view_mut().range(of(to))?;
                        device.copy(Stream::Transfer, source.view().range(of(from))?, &target)?;
                    }
                    PageMove::Download { page, host_page } => {
                        let source = buffer.view().range(of(page))?;
                        host_tier.download(Stream::Transfer, source, on_host(host_page))?;
                    }
                    PageMove::Upload { host_page, page } => {
                        let target = buffer.view_mut().range(of(page))?;
                        host_tier.upload(Stream::Transfer, on_host(host_page), &target)?;
                    }
                }
                offset += n_bytes;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SimOptions, Simulator};

    const SHAPES: [KvShape; 2] = [
        KvShape {
            n_kv_heads: 2,
            dim_k: 12,
            dim_v: 8,
        },
        KvShape {
            n_kv_heads: 1,
            dim_k: 8,
            dim_v: 24,
        },
    ];

    /// Fills a page of every layer with numbers that belong to it alone.
    fn fill(store: &mut KvStore, page: usize, seed: u8) {
        let device = store.device.clone();
        for layer in &mut store.layers {
            let bytes = layer.shape.page_bytes(store.ty);
            for (buffer, n_bytes) in [&mut layer.k, &mut layer.v].into_iter().zip(bytes) {
                let values: Vec<u8> = (0..n_bytes).map(|i| (i as u8).wrapping_mul(seed)).collect();
                let range = page * n_bytes..(page + 1) * n_bytes;
                device
                    .upload_to(&values, &buffer.view_mut().range(range).unwrap())
                    .unwrap();
            }
        }
    }

    fn read(store: &mut KvStore, page: usize) -> Vec<u8> {
        store.await_pages(&[page as u32]).unwrap();
        let mut bytes = Vec::new();
        for layer in &store.layers {
            let [k_bytes, v_bytes] = layer.shape.page_bytes(store.ty);
            for (buffer, n_bytes) in [(&layer.k, k_bytes), (&layer.v, v_bytes)] {
                let range = page * n_bytes..(page + 1) * n_bytes;
                bytes.extend(
                    store
                        .device
                        .download(buffer.view().range(range).unwrap())
                        .unwrap(),
                );
            }
        }
        bytes
    }

    #[test]
    fn pages_survive_the_way_to_the_host_and_back() {
        for ty in [KvType::F16, KvType::F32] {
            let device = Simulator::new(&SimOptions::default()).device();
            let mut store = KvStore::new(&device, ty, &SHAPES, 5, 3).unwrap();
            fill(&mut store, 1, 7);
            fill(&mut store, 2, 11);
            let (one, two) = (read(&mut store, 1), read(&mut store, 2));
            assert_ne!(one, two);
            store
                .move_pages(&[
                    PageMove::Download {
                        page: 1,
                        host_page: 2,
                    },
                    PageMove::Duplicate { from: 2, to: 1 },
                    PageMove::Upload {
                        host_page: 2,
                        page: 4,
                    },
                    PageMove::Duplicate { from: 4, to: 4 },
                ])
                .unwrap();
            assert_eq!(read(&mut store, 4), one);
            assert_eq!(read(&mut store, 1), two);
            assert_eq!(read(&mut store, 2), two);
        }
    }

    #[test]
    fn a_page_that_does_not_exist_moves_nothing() {
        let device = Simulator::new(&SimOptions::default()).device();
        let mut store = KvStore::new(&device, KvType::F16, &SHAPES, 2, 1).unwrap();
        fill(&mut store, 0, 3);
        let before = read(&mut store, 1);
        for bad in [
            PageMove::Duplicate { from: 0, to: 2 },
            PageMove::Download {
                page: 0,
                host_page: 1,
            },
            PageMove::Upload {
                host_page: 1,
                page: 0,
            },
        ] {
            let moves = [PageMove::Duplicate { from: 0, to: 1 }, bad];
            assert!(matches!(
                store.move_pages(&moves),
                Err(CudaExecError::Bounds { .. })
            ));
        }
        assert_eq!(read(&mut store, 1), before);
    }
}
