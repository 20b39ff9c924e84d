//! [`KvStore`]: keys and values in pages on the device, with a host tier in pinned memory.
//!
//! Separate from attention, which reads it. A layer has two arrays, keys and values, `[n_pages, n_kv_heads, 16, row]`
//! with a row rounded up to 8 numbers, so a page of a layer is one run of bytes (`kernels/kv.cuh`); a layer whose values are in its
//! keys has one. Pages move on the
//! transfer stream, in parallel with the computation. Invariant: moves come after the work queued before them, and the work queued
//! after [`KvStore::await_pages`] named a page comes after the moves of that page.

mod bytes;

use tokenmill_backend::{KvLayerShape, KvLayout, KvType, PAGE_TOKENS, PageCopy};

use crate::{Buffer, CudaExecError, Device, Fence, Pinned, Stream, View, ViewMut, error::Result};

/// Bytes of a page's keys and of the values that are stored by themselves.
fn layer_page_bytes(shape: KvLayerShape, ty: KvType) -> [usize; 2] {
    [shape.head_dim_k, shape.own_value_dim()]
        .map(|dim| shape.n_kv_heads * PAGE_TOKENS * ty.head_bytes(dim.next_multiple_of(8)))
}

#[derive(Debug)]
struct Layer {
    shape: KvLayerShape,
    k: Buffer<u8>,
    /// `None` where values are in the keys.
    v: Option<Buffer<u8>>,
}

impl Layer {
    /// The arrays that there are, with the bytes of a page of each.
    fn arrays(&mut self, ty: KvType) -> impl Iterator<Item = (&mut Buffer<u8>, usize)> {
        let n_bytes = layer_page_bytes(self.shape, ty);
        [Some(&mut self.k), self.v.as_mut()]
            .into_iter()
            .zip(n_bytes)
            .filter_map(|(buffer, n_bytes)| Some((buffer?, n_bytes)))
    }
}

/// A layer's pages, to read.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer<'a> {
    pub(crate) ty: KvType,
    pub(crate) shape: KvLayerShape,
    pub(crate) k: View<'a, u8>,
    /// The keys where values are in them.
    pub(crate) v: View<'a, u8>,
}

/// A layer's pages, to write.
#[derive(Debug)]
pub struct KvLayerMut<'a> {
    pub(crate) ty: KvType,
    pub(crate) shape: KvLayerShape,
    pub(crate) k: ViewMut<'a, u8>,
    /// `None` where values are in the keys.
    pub(crate) v: Option<ViewMut<'a, u8>>,
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
    /// Allocates the pages on the device and those of the host tier in pinned memory, all zero.
    ///
    /// # Errors
    /// As [`Self::check`], [`CudaExecError::OutOfMemory`], or the driver's.
    pub fn new(device: &Device, layout: &KvLayout) -> Result<Self> {
        Self::check(layout)?;
        let (ty, n_pages, n_host_pages) = (layout.key_type, layout.n_pages, layout.n_host_pages);
        let mut layers = Vec::with_capacity(layout.layers.len());
        for &shape in &layout.layers {
            let [k_bytes, v_bytes] = layer_page_bytes(shape, ty);
            let zeroed = |n_bytes| -> Result<Buffer<u8>> {
                let mut buffer = device.alloc("keys and values", n_bytes)?;
                // A page that is moved before it is full is whole nevertheless.
                device.zero(Stream::Compute, &buffer.view_mut())?;
                Ok(buffer)
            };
            layers.push(Layer {
                shape,
                k: zeroed(k_bytes * n_pages)?,
                v: if shape.has_values_in_keys {
                    None
                } else {
                    Some(zeroed(v_bytes * n_pages)?)
                },
            });
        }
        let page_bytes = Self::page_bytes(layout);
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

    /// Says whether kernels take heads of these widths and store keys and values of these types.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] where a head is too wide or a type is not stored.
    pub fn check(layout: &KvLayout) -> Result<()> {
        for shape in &layout.layers {
            check_head_dims(shape.head_dim_k, shape.head_dim_v)?;
        }
        match (layout.key_type, layout.value_type) {
            (KvType::F16, KvType::F16) | (KvType::F32, KvType::F32) => Ok(()),
            (keys, values) => Err(CudaExecError::Unsupported {
                feature: format!("KV stores of {keys} keys and {values} values (only both f16, or both f32)"),
            }),
        }
    }

    /// Bytes of a page, all layers.
    pub fn page_bytes(layout: &KvLayout) -> usize {
        (layout.layers.iter())
            .flat_map(|&shape| layer_page_bytes(shape, layout.key_type))
            .sum()
    }

    /// A layer, to read.
    pub fn layer(&self, layer_idx: usize) -> KvLayer<'_> {
        let layer = &self.layers[layer_idx];
        KvLayer {
            ty: self.ty,
            shape: layer.shape,
            k: layer.k.view(),
            v: layer.v.as_ref().unwrap_or(&layer.k).view(),
        }
    }

    /// A layer, to write.
    pub fn layer_mut(&mut self, layer_idx: usize) -> KvLayerMut<'_> {
        let layer = &mut self.layers[layer_idx];
        KvLayerMut {
            ty: self.ty,
            shape: layer.shape,
            k: layer.k.view_mut(),
            v: layer.v.as_mut().map(Buffer::view_mut),
        }
    }

    /// Queues copies, in order, behind the work queued so far.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`] for a page that there is not, before anything is copied; or the driver's.
    pub fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<()> {
        for &copy in copies {
            self.check_copy(copy)?;
        }
        self.before_moves.record(Stream::Compute)?;
        self.before_moves.hold(Stream::Transfer)?;
        let mut queued = Ok(());
        for &copy in copies {
            queued = self.queue(copy);
            let (PageCopy::Duplicate { to: page, .. }
            | PageCopy::Download { page, .. }
            | PageCopy::Upload { page, .. }) = copy;
            self.is_moving[page as usize] = true;
            if let PageCopy::Duplicate { from, .. } = copy {
                self.is_moving[from as usize] = true;
            }
            if queued.is_err() {
                break;
            }
        }
        // What was queued before the failure runs, and the steps that touch its pages wait for it.
        self.after_moves.record(Stream::Transfer)?;
        queued
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

    fn check_copy(&self, copy: PageCopy) -> Result<()> {
        let inside = |page: u32, len: usize| {
            let page = page as usize;
            if page < len {
                return Ok(());
            }
            Err(CudaExecError::Bounds {
                range: page..page.saturating_add(1),
                len,
            })
        };
        match copy {
            PageCopy::Duplicate { from, to } => {
                inside(from, self.n_pages).and_then(|()| inside(to, self.n_pages))
            }
            PageCopy::Download { page, host_page } | PageCopy::Upload { host_page, page } => {
                inside(page, self.n_pages).and_then(|()| inside(host_page, self.n_host_pages))
            }
        }
    }

    fn queue(&mut self, copy: PageCopy) -> Result<()> {
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
            for (buffer, n_bytes) in layer.arrays(*ty) {
                let of = |page: u32| page as usize * n_bytes..(page as usize + 1) * n_bytes;
                let on_host = |host_page: u32| {
                    let start = host_page as usize * *page_bytes + offset;
                    start..start + n_bytes
                };
                match copy {
                    PageCopy::Duplicate { from, to } if from == to => {}
                    PageCopy::Duplicate { from, to } => {
                        let source = buffer.share();
                        let target = buffer.view_mut().range(of(to))?;
                        device.copy(Stream::Transfer, source.view().range(of(from))?, &target)?;
                    }
                    PageCopy::Download { page, host_page } => {
                        let source = buffer.view().range(of(page))?;
                        host_tier.download(Stream::Transfer, source, on_host(host_page))?;
                    }
                    PageCopy::Upload { host_page, page } => {
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

/// Widest head of the kernels.
const MAX_HEAD_DIM: usize = 1024;

/// Says whether the kernels take heads of these widths.
pub(crate) fn check_head_dims(dim_k: usize, dim_v: usize) -> Result<()> {
    let widest = dim_k.max(dim_v);
    if widest <= MAX_HEAD_DIM {
        return Ok(());
    }
    Err(CudaExecError::Unsupported {
        feature: format!("attention with heads of {widest} values (at most {MAX_HEAD_DIM})"),
    })
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::PageGroup;
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use super::*;
    use crate::driver::simulated;

    const SHAPES: [KvLayerShape; 3] = [
        KvLayerShape {
            n_kv_heads: 2,
            head_dim_k: 12,
            head_dim_v: 8,
            has_values_in_keys: false,
        },
        KvLayerShape {
            n_kv_heads: 1,
            head_dim_k: 8,
            head_dim_v: 24,
            has_values_in_keys: false,
        },
        KvLayerShape {
            n_kv_heads: 1,
            head_dim_k: 20,
            head_dim_v: 12,
            has_values_in_keys: true,
        },
    ];

    fn layout(ty: KvType, n_pages: usize, n_host_pages: usize) -> KvLayout {
        KvLayout {
            layers: SHAPES.to_vec(),
            groups: vec![PageGroup::Main; SHAPES.len()],
            n_window_pages: 0,
            n_window_host_pages: 0,
            n_pages,
            n_host_pages,
            key_type: ty,
            value_type: ty,
        }
    }

    /// Fills a page of every layer with numbers that belong to it alone.
    fn fill(store: &mut KvStore, page: usize, seed: u8) {
        let device = store.device.clone();
        for layer in &mut store.layers {
            for (buffer, n_bytes) in layer.arrays(store.ty) {
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
        let KvStore {
            device, ty, layers, ..
        } = store;
        for layer in layers {
            for (buffer, n_bytes) in layer.arrays(*ty) {
                let range = page * n_bytes..(page + 1) * n_bytes;
                bytes.extend(device.download(buffer.view().range(range).unwrap()).unwrap());
            }
        }
        bytes
    }

    #[test]
    fn pages_survive_the_way_to_the_host_and_back() {
        for ty in [KvType::F16, KvType::F32] {
            let device = simulated(&Simulator::new(&SimOptions::default()));
            let mut store = KvStore::new(&device, &layout(ty, 5, 3)).unwrap();
            fill(&mut store, 1, 7);
            fill(&mut store, 2, 11);
            let (one, two) = (read(&mut store, 1), read(&mut store, 2));
            assert_ne!(one, two);
            store
                .copy_pages(&[
                    PageCopy::Download {
                        page: 1,
                        host_page: 2,
                    },
                    PageCopy::Duplicate { from: 2, to: 1 },
                    PageCopy::Upload {
                        host_page: 2,
                        page: 4,
                    },
                    PageCopy::Duplicate { from: 4, to: 4 },
                ])
                .unwrap();
            assert_eq!(read(&mut store, 4), one);
            assert_eq!(read(&mut store, 1), two);
            assert_eq!(read(&mut store, 2), two);
        }
    }

    #[test]
    fn a_page_is_the_same_after_a_way_through_bytes() {
        for ty in [KvType::F16, KvType::F32] {
            let device = simulated(&Simulator::new(&SimOptions::default()));
            let mut store = KvStore::new(&device, &layout(ty, 5, 0)).unwrap();
            fill(&mut store, 1, 7);
            let mut staging = device.alloc_pinned(store.bytes_of_page()).unwrap();
            store
                .copy_pages(&[PageCopy::Duplicate { from: 1, to: 2 }])
                .unwrap();
            store.read_page(2, &mut staging).unwrap();
            assert_eq!(staging.host().unwrap(), &read(&mut store, 1)[..]);
            store.write_page(4, &mut staging).unwrap();
            assert_eq!(read(&mut store, 4), read(&mut store, 1));
            assert!(store.read_page(5, &mut staging).is_err());
        }
    }

    #[test]
    fn a_page_that_does_not_exist_moves_nothing() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let mut store = KvStore::new(&device, &layout(KvType::F16, 2, 1)).unwrap();
        fill(&mut store, 0, 3);
        let before = read(&mut store, 1);
        for bad in [
            PageCopy::Duplicate { from: 0, to: 2 },
            PageCopy::Download {
                page: 0,
                host_page: 1,
            },
            PageCopy::Upload {
                host_page: 1,
                page: 0,
            },
        ] {
            let moves = [PageCopy::Duplicate { from: 0, to: 1 }, bad];
            assert!(matches!(
                store.copy_pages(&moves),
                Err(CudaExecError::Bounds { .. })
            ));
        }
        assert_eq!(read(&mut store, 1), before);
    }
}
