//! Products of one row together with the operations between them: the addition to the hidden state after one, and the norm before the next.
//! Kernels: `matvec_add_m1` and those with `normed` of `matvec.cu` and `matvec_pair.cu`.
//!
//! Invariant: the bits are those of separate launches of product, addition and norm.

use super::{
    Ops, QuantizedMut, check_equal,
    elementwise::activation_code,
    linear::{GatedProduct, LinearInput, MAX_JOBS, Product, matrix_args, n_blocks, not_a_factor},
};
use crate::{
    Args, FewRows, Kernel, LaunchShape, Matrix, View, ViewMut, error::Result, matrix::JoinedKernels,
    modules::PAIRS,
};

/// Threads of a thread block.
const THREADS: u32 = 128;

/// A row that is RMS-normed, and the outputs of the normed row in both forms.
#[derive(Debug)]
pub struct NormedInput<'a> {
    /// `[width]`.
    pub hidden: View<'a, f32>,
    /// `[width]`; `None` for none.
    pub weight: Option<View<'a, f32>>,
    /// Added to the mean square.
    pub eps: f32,
    /// `[width]`.
    pub output: ViewMut<'a, f32>,
    /// The same, quantized.
    pub quantized: QuantizedMut<'a>,
}

/// Appends the arguments for a row that a kernel norms.
fn with_normed<'a>(args: Args<'a>, n_in: usize, input: NormedInput<'a>) -> Result<Args<'a>> {
    let quantized = input.quantized.rows(0, 1, n_in)?;
    let (bytes, scales) = QuantizedMut::split(Some(quantized));
    Ok(args
        .count(n_in)
        .read(input.hidden.range(0..n_in)?)
        .read_or_null(input.weight.map(|weight| weight.range(0..n_in)).transpose()?)
        .float(input.eps)
        .write(input.output.range(0..n_in)?)
        .write_or_null(bytes)
        .write_or_null(scales))
}

impl Ops {
    /// Returns the kernels for one row, if the matrix has them: it is stored in strips, and results may depend on the number of rows.
    fn joined_of(&self, matrix: &Matrix) -> Option<JoinedKernels> {
        matrix.kernels.joined.filter(|_| !self.is_batch_invariant)
    }

    /// Returns whether [`Self::linear_add`] takes a matrix.
    pub fn can_add(&self, matrix: &Matrix) -> bool {
        self.joined_of(matrix).is_some()
    }

    /// Adds the product of one row: `output += scale * (matrix * input + bias)`.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`](crate::CudaExecError::Unsupported) if [`Self::can_add`] is false,
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds), or the driver's.
    pub fn linear_add(&self, scale: f32, input: &LinearInput<'_>, product: Product<'_>) -> Result<()> {
        let matrix = product.matrix;
        let kernels = self.joined_of(matrix).ok_or_else(not_a_factor)?;
        check_equal("the rows that are added to one", input.n_rows, 1)?;
        if let Some(bias) = &product.bias {
            check_equal("the length of a bias", bias.len(), matrix.n_out())?;
        }
        let quantized = input
            .quantized
            .ok_or_else(not_a_factor)?
            .rows(0, 1, matrix.n_in())?;
        let args = Args::new()
            .read(matrix.view())
            .write(product.output.range(0..matrix.n_out())?)
            .read_or_null(product.bias)
            .float(scale)
            .count(matrix.n_out())
            .count(matrix.n_in())
            .read(quantized.bytes)
            .read(quantized.scales);
        let few = FewRows::of(matrix.layout().ty());
        let grid = [matrix.n_out().div_ceil(FewRows::STRIP_ROWS), 1, 1];
        let shape = LaunchShape::new(grid, THREADS).with_shared_bytes(few.shared_bytes(1));
        self.device.launch(kernels.add, shape, &args)
    }

    /// Returns the launch of products of a row that is normed first, if there is one.
    fn normed_launch(&self, products: &[Product<'_>]) -> Option<(Kernel, LaunchShape)> {
        let first = products.first().filter(|_| products.len() <= MAX_JOBS)?;
        let few = |product: &Product<'_>| FewRows::of(product.matrix.layout().ty());
        let (n_in, ty) = (first.matrix.n_in(), first.matrix.layout().ty());
        // Tall matrices have too many thread blocks to norm the row in each, and thread blocks of several strips.
        let takes = |product: &Product<'_>| {
            let matrix = product.matrix;
            self.joined_of(matrix).is_some()
                && matrix.n_in() == n_in
                && few(product).block_rows(matrix.n_out(), n_in) == FewRows::STRIP_ROWS
        };
        if n_in > FewRows::NORMED_COLUMNS || !products.iter().all(takes) {
            return None;
        }
        let kernel = match products {
            [_, b, c] if b.matrix.layout().ty() == ty && c.matrix.layout().ty() != ty => {
                let types = [ty, c.matrix.layout().ty()];
                self.pairs[PAIRS.iter().position(|pair| *pair == types)?]?.normed?
            }
            _ if products.iter().all(|product| product.matrix.layout().ty() == ty) => {
                self.joined_of(first.matrix)?.normed
            }
            _ => return None,
        };
        let shared_bytes = products
            .iter()
            .map(|product| few(product).normed_shared_bytes(n_in))
            .max()?;
        let grid = [n_blocks(products, FewRows::STRIP_ROWS), 1, 1];
        Some((
            kernel,
            LaunchShape::new(grid, THREADS).with_shared_bytes(shared_bytes),
        ))
    }

    /// Returns whether [`Self::linear_normed`] takes these products.
    pub fn can_norm(&self, products: &[Product<'_>]) -> bool {
        self.normed_launch(products).is_some()
    }

    /// Norms a row and multiplies it by up to three matrices.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`](crate::CudaExecError::Unsupported) if [`Self::can_norm`] is false,
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds), or the driver's.
    pub fn linear_normed(&self, input: NormedInput<'_>, products: &mut [Product<'_>]) -> Result<()> {
        let (kernel, shape) = self.normed_launch(products).ok_or_else(not_a_factor)?;
        let n_in = products[0].matrix.n_in();
        let args = with_normed(matrix_args(1, products)?, n_in, input)?;
        self.device.launch(kernel, shape, &args)
    }

    /// Returns whether [`Self::gated_normed`] takes this pair.
    pub fn can_norm_gated(&self, gate: &Matrix, up: &Matrix) -> bool {
        self.joined_of(gate).is_some()
            && gate.layout() == up.layout()
            && gate.n_in() <= FewRows::NORMED_COLUMNS
    }

    /// Norms a row and multiplies it by a gate and an up matrix at once.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`](crate::CudaExecError::Unsupported) if [`Self::can_norm_gated`] is false,
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds), or the driver's.
    pub fn gated_normed(&self, input: NormedInput<'_>, product: GatedProduct<'_>) -> Result<()> {
        let [gate, up] = product.matrices;
        let kernels = self.joined_of(gate).filter(|_| self.can_norm_gated(gate, up));
        let kernel = kernels.ok_or_else(not_a_factor)?.gated_normed;
        let (n_out, n_in) = (gate.n_out(), gate.n_in());
        let quantized = product.quantized.map(|rows| rows.rows(0, 1, n_out)).transpose()?;
        let (bytes, scales) = QuantizedMut::split(quantized);
        for bias in product.biases.iter().flatten() {
            check_equal("the length of a bias", bias.len(), n_out)?;
        }
        let args = Args::new()
            .read(gate.view())
            .read(up.view())
            .count(n_out)
            .read_or_null(product.biases[0])
            .read_or_null(product.biases[1])
            .count(activation_code(product.activation))
            .write(product.output.range(0..n_out)?)
            .write_or_null(bytes)
            .write_or_null(scales);
        let shared_bytes = FewRows::of(gate.layout().ty()).gated_normed_shared_bytes(n_in);
        let shape = LaunchShape::new([n_out.div_ceil(32), 1, 1], THREADS).with_shared_bytes(shared_bytes);
        self.device
            .launch(kernel, shape, &with_normed(args, n_in, input)?)
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{Activation, Norm, NormKind};
    use tokenmill_gguf::TensorType;
    use tokenmill_quant::Format;
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use super::*;
    use crate::{Buffer, Device, MatrixUse, QuantizedRows, Uploader, driver::simulated};

    fn values(seed: usize, len: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 + seed * 131 + i / 97 * 17) % 1009) as f32 / 504.5 - 1.0;
        (0..len).map(value).collect()
    }

    fn matrix(device: &Device, ty: TensorType, [n_out, n_in]: [usize; 2], seed: usize) -> Matrix {
        let format = Format::of(ty).unwrap();
        let row_bytes = format.row_bytes(n_in).unwrap();
        let mut rows = vec![0; n_out * row_bytes];
        for (i, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
            format.quantize_row(&values(seed + i, n_in), row).unwrap();
        }
        let mut uploader = Uploader::new(device);
        let usage = MatrixUse {
            is_table: false,
            is_factor: true,
            is_of_experts: false,
        };
        let matrix = uploader.upload(ty, [n_out, n_in], &rows, usage).unwrap();
        uploader.finish().unwrap();
        matrix
    }

    fn bits(device: &Device, rows: &Buffer<f32>) -> Vec<u32> {
        let rows = device.download(rows.view()).unwrap();
        assert!(rows.iter().all(|x| x.is_finite()));
        rows.iter().map(|x| x.to_bits()).collect()
    }

    const TYPES: [TensorType; 3] = [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K];

    #[test]
    fn a_product_is_added_as_it_would_be_behind_it() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let ops = Ops::load(&device).unwrap();
        for ty in TYPES {
            for (shape, scale, has_bias) in [([40, 512], 1.0, false), ([7, 2304], 0.22, true)] {
                let [n_out, n_in] = shape;
                let matrix = matrix(&device, ty, shape, 1);
                let x = device.upload("x", &values(2, n_in)).unwrap();
                let bias = device.upload("bias", &values(3, n_out)).unwrap();
                let mut quantized = QuantizedRows::new(&device, 1, n_in).unwrap();
                ops.quantize(1, n_in, x.view(), quantized.view_mut()).unwrap();
                let input = LinearInput {
                    n_rows: 1,
                    floats: x.view(),
                    quantized: Some(quantized.view()),
                };
                let stream = || device.upload("stream", &values(4, n_out)).unwrap();
                let (mut one, mut two, mut delta) = (stream(), stream(), stream());
                let product = |output| Product {
                    matrix: &matrix,
                    bias: has_bias.then(|| bias.view()),
                    output,
                };
                let sum = product(one.view_mut());
                ops.linear_add(scale, &input, sum).unwrap();
                ops.linear(&input, &mut [product(delta.view_mut())]).unwrap();
                let norm = Norm {
                    kind: NormKind::Rms,
                    width: n_out,
                    weight: None,
                    bias: None,
                    eps: 1e-5,
                };
                let mut normed = stream();
                let added = (scale, delta.view());
                ops.add_norm(&norm, 1, added, two.view_mut(), normed.view_mut(), None)
                    .unwrap();
                assert_eq!(bits(&device, &one), bits(&device, &two), "{ty:?}, {shape:?}");
            }
        }
    }

    /// The row of a hidden state, its norm, and the results computed from them.
    struct Rows {
        hidden: Buffer<f32>,
        norm: Norm<Buffer<f32>>,
        normed: Buffer<f32>,
        quantized: QuantizedRows,
    }

    impl Rows {
        fn new(device: &Device, n_in: usize) -> Self {
            Self {
                hidden: device.upload("stream", &values(5, n_in)).unwrap(),
                norm: Norm {
                    kind: NormKind::Rms,
                    width: n_in,
                    weight: (n_in != 512).then(|| device.upload("weight", &values(6, n_in)).unwrap()),
                    bias: None,
                    eps: 1e-5,
                },
                normed: device.alloc("normed", n_in).unwrap(),
                quantized: QuantizedRows::new(device, 1, n_in).unwrap(),
            }
        }

        fn input(&mut self) -> NormedInput<'_> {
            NormedInput {
                hidden: self.hidden.view(),
                weight: self.norm.weight.as_ref().map(Buffer::view),
                eps: self.norm.eps,
                output: self.normed.view_mut(),
                quantized: self.quantized.view_mut(),
            }
        }

        fn norm(&mut self, ops: &Ops) -> LinearInput<'_> {
            let form = Some(self.quantized.view_mut());
            ops.norm(&self.norm, 1, self.hidden.view(), self.normed.view_mut(), form)
                .unwrap();
            LinearInput {
                n_rows: 1,
                floats: self.normed.view(),
                quantized: Some(self.quantized.view()),
            }
        }

        /// Returns the normed row in both forms.
        fn bits(&self, device: &Device) -> (Vec<u32>, Vec<i8>, Vec<crate::Q8Scale>) {
            let form = self.quantized.view();
            let bytes = device.download(form.bytes).unwrap();
            (
                bits(device, &self.normed),
                bytes,
                device.download(form.scales).unwrap(),
            )
        }
    }

    #[test]
    fn a_row_is_normed_as_it_would_be_ahead_of_the_product() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let mut ops = Ops::load(&device).unwrap();
        let [q4, q5, q6] = TYPES;
        for pair in [[q4, q5], [q4, q6], [q5, q6]] {
            ops.load_pair(pair).unwrap();
        }
        let cases: [(&[TensorType], usize); 8] = [
            (&[q4], 256),
            (&[q5, q5], 512),
            (&[q6, q6, q6], 1280),
            (&[q4, q4, q4], 1792),
            (&[q4, q4, q5], 512),
            (&[q4, q4, q6], 2048),
            (&[q5, q5, q6], 768),
            (&[q6], 2048),
        ];
        for (types, n_in) in cases {
            let matrices: Vec<Matrix> = (types.iter().zip([20, 16, 5]))
                .map(|(&ty, n_out)| matrix(&device, ty, [n_out, n_in], n_out))
                .collect();
            let bias = device.upload("bias", &values(8, 20)).unwrap();
            let mut outputs = [(); 2].map(|()| {
                let output = |matrix: &Matrix| device.alloc("y", matrix.n_out()).unwrap();
                matrices.iter().map(output).collect::<Vec<_>>()
            });
            let (mut one, mut two) = (Rows::new(&device, n_in), Rows::new(&device, n_in));
            for (is_joined, outputs) in [true, false].into_iter().zip(&mut outputs) {
                let mut products: Vec<Product<'_>> = (matrices.iter().zip(outputs))
                    .map(|(matrix, output)| Product {
                        matrix,
                        bias: (matrix.n_out() == 20).then(|| bias.view()),
                        output: output.view_mut(),
                    })
                    .collect();
                let before = device.n_launches();
                if is_joined {
                    assert!(ops.can_norm(&products), "{types:?}");
                    ops.linear_normed(one.input(), &mut products).unwrap();
                    assert_eq!(device.n_launches() - before, 1);
                } else {
                    ops.linear(&two.norm(&ops), &mut products).unwrap();
                }
            }
            for (one, two) in outputs[0].iter().zip(&outputs[1]) {
                assert_eq!(bits(&device, one), bits(&device, two), "{types:?}, {n_in}");
            }
            assert_eq!(one.bits(&device), two.bits(&device), "{types:?}, {n_in}");
        }
        let wide = matrix(&device, q4, [16, 2304], 1);
        let mut output = device.alloc("y", 16).unwrap();
        let product = Product {
            matrix: &wide,
            bias: None,
            output: output.view_mut(),
        };
        assert!(!ops.can_norm(&[product]));
    }

    #[test]
    fn a_gated_pair_norms_its_row() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let ops = Ops::load(&device).unwrap();
        for (ty, [n_out, n_in]) in [
            (TensorType::Q4_K, [48, 1024]),
            (TensorType::Q5_K, [64, 512]),
            (TensorType::Q6_K, [33, 2048]),
        ] {
            let [gate, up] = [1, 100].map(|seed| matrix(&device, ty, [n_out, n_in], seed));
            let bias = device.upload("bias", &values(9, n_out)).unwrap();
            let (mut one, mut two) = (Rows::new(&device, n_in), Rows::new(&device, n_in));
            let mut found = [true, false].map(|is_joined| {
                let mut output = device.alloc("y", n_out).unwrap();
                let mut quantized = QuantizedRows::new(&device, 1, n_out).unwrap();
                let form = n_out.is_multiple_of(32).then(|| quantized.view_mut());
                let pair = GatedProduct {
                    matrices: [&gate, &up],
                    biases: [None, Some(bias.view())],
                    activation: Activation::Silu,
                    output: output.view_mut(),
                    quantized: form,
                };
                if is_joined {
                    assert!(ops.can_norm_gated(&gate, &up));
                    ops.gated_normed(one.input(), pair).unwrap();
                } else {
                    ops.matvec_gated(&two.norm(&ops), pair).unwrap();
                }
                let bytes =
                    (n_out.is_multiple_of(32)).then(|| device.download(quantized.view().bytes).unwrap());
                (bits(&device, &output), bytes)
            });
            let [joined, apart] = &mut found;
            assert_eq!(joined, apart, "{ty:?}");
            assert_eq!(one.bits(&device), two.bits(&device), "{ty:?}");
        }
    }
}
