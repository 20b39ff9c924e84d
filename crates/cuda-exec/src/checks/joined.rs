//! Checks products of one row together with the operation before or after: the norm of the row, or the
//! addition to the hidden state.
//!
//! Only decode steps of one sequence use these products. Types without such kernels have no check here.

use tokenmill_gguf::TensorType;

use super::{
    Finding, Wrong, check,
    expected::{Numbers, compare},
    known::{Input, Known, WIDTH},
    products::{N_OUT, gated, gated_product, pairs_of, products, two},
    rows::{EPS, normed},
};
use crate::{Buffer, Device, NormedInput, Ops, Product, QuantizedRows, error::Result};

/// Factor of the product that is added.
const SCALE: f32 = 0.5;

/// Checks all types and pairs of types.
pub(super) fn check_all(device: &Device, ops: &Ops, types: &[TensorType]) -> Result<usize, Finding> {
    let mut n_checks = 0;
    for &ty in types {
        let mut numbers = Numbers(100 + ty as u64);
        let [gate, up] = &two(device, ty, &mut numbers)?;
        if !ops.can_add(&gate.matrix) {
            continue;
        }
        let name = ty.name();
        check(device, format!("an added product of {name}"), || {
            add(device, ops, gate, &mut numbers)
        })?;
        check(device, format!("products of {name} with a normed row"), || {
            norm(device, ops, &[gate, up], &mut numbers)
        })?;
        let what = format!("gated products of {name} with a normed row");
        check(device, what, || norm_gated(device, ops, [gate, up], &mut numbers))?;
        n_checks += 3;
    }
    for pair in pairs_of(types) {
        let mut numbers = Numbers(19);
        let [first, second] = two(device, pair[0], &mut numbers)?;
        let [third, _] = two(device, pair[1], &mut numbers)?;
        let [a, b] = pair.map(TensorType::name);
        check(
            device,
            format!("products of {a} and {b} with a normed row"),
            || norm(device, ops, &[&first, &second, &third], &mut numbers),
        )?;
        n_checks += 1;
    }
    Ok(n_checks)
}

fn add(device: &Device, ops: &Ops, known: &Known, numbers: &mut Numbers) -> Result<(), Wrong> {
    let (x, hidden) = (numbers.take(WIDTH), numbers.take(N_OUT));
    let input = Input::new(device, ops, &x, WIDTH)?;
    let mut y = device.upload("the check of kernels", &hidden)?;
    let product = Product {
        matrix: &known.matrix,
        bias: None,
        output: y.view_mut(),
    };
    ops.linear_add(SCALE, &input.view(), product)?;
    let expected: Vec<f64> = (hidden.iter().zip(known.times(&x)))
        .map(|(&hidden, product)| f64::from(hidden) + f64::from(SCALE) * product)
        .collect();
    compare(&device.download(y.view())?, &expected)
}

/// Holds a row to norm, and the memory for the normed row.
struct Row {
    hidden: Buffer<f32>,
    weight: Buffer<f32>,
    output: Buffer<f32>,
    quantized: QuantizedRows,
    /// The normed row.
    expected: Vec<f32>,
}

impl Row {
    fn new(device: &Device, numbers: &mut Numbers) -> Result<Self> {
        let (hidden, weight) = (numbers.take(WIDTH), numbers.take(WIDTH));
        let wide: Vec<f64> = hidden.iter().map(|&x| f64::from(x)).collect();
        Ok(Self {
            expected: normed(&wide, &weight).into_iter().map(|x| x as f32).collect(),
            hidden: device.upload("the check of kernels", &hidden)?,
            weight: device.upload("the check of kernels", &weight)?,
            output: device.alloc("the check of kernels", WIDTH)?,
            quantized: QuantizedRows::new(device, 1, WIDTH)?,
        })
    }

    fn input(&mut self) -> NormedInput<'_> {
        NormedInput {
            hidden: self.hidden.view(),
            weight: Some(self.weight.view()),
            eps: EPS,
            output: self.output.view_mut(),
            quantized: self.quantized.view_mut(),
        }
    }

    /// Compares the normed row itself.
    fn compare(&self, device: &Device) -> Result<(), Wrong> {
        let expected: Vec<f64> = self.expected.iter().map(|&x| f64::from(x)).collect();
        compare(&device.download(self.output.view())?, &expected)
    }
}

fn norm(device: &Device, ops: &Ops, known: &[&Known], numbers: &mut Numbers) -> Result<(), Wrong> {
    let mut row = Row::new(device, numbers)?;
    let alloc = |known: &&Known| known.output(device, &row.expected);
    let mut outputs = known.iter().map(alloc).collect::<Result<Vec<_>>>()?;
    let mut products = products(known, &mut outputs);
    if !ops.can_norm(&products) {
        return Ok(());
    }
    ops.linear_normed(row.input(), &mut products)?;
    row.compare(device)?;
    for (known, y) in known.iter().zip(&outputs) {
        compare(&device.download(y.view())?, &known.times(&row.expected))?;
    }
    Ok(())
}

fn norm_gated(
    device: &Device,
    ops: &Ops,
    [gate, up]: [&Known; 2],
    numbers: &mut Numbers,
) -> Result<(), Wrong> {
    if !ops.can_norm_gated(&gate.matrix, &up.matrix) {
        return Ok(());
    }
    let mut row = Row::new(device, numbers)?;
    let mut y = gate.output(device, &row.expected)?;
    ops.gated_normed(row.input(), gated_product([gate, up], &mut y))?;
    row.compare(device)?;
    let expected = gated(gate.times(&row.expected), up.times(&row.expected));
    compare(&device.download(y.view())?, &expected)
}
