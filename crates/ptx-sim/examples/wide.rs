//! Runs `matmul_wide` of a PTX file against a plain loop, and estimates its time.
use std::{env, fs, time::Instant};

use tokenmill_ptx_sim::{
    Arguments, Checks, DeviceMemory, DeviceProfile, LaunchConfig, Module, Residency, Start, estimate, launch,
};

fn f16_to_f32(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, bits >> 10 & 31, bits & 1023);
    let value = if exponent == 0 {
        f32::from(fraction) * 2f32.powi(-24)
    } else {
        (1.0 + f32::from(fraction) / 1024.0) * 2f32.powi(i32::from(exponent) - 15)
    };
    if sign == 1 { -value } else { value }
}

fn main() {
    let path = env::args().nth(1).unwrap();
    let ptx = fs::read_to_string(path).unwrap();
    let mut memory = DeviceMemory::new();
    let module = Module::load(&ptx, &mut memory).unwrap();
    let (n_rows, n_in, n_out) = (300usize, 1024usize, 200usize);
    let mut state = 88172645463325252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let n_groups = n_out * n_in / 32;
    let mut w: Vec<u8> = (0..(n_groups * 16).next_multiple_of(256) + n_out * n_in / 256 * 16)
        .map(|_| random() as u8)
        .collect();
    let headers = (n_groups * 16).next_multiple_of(256);
    for s in 0..n_out * n_in / 256 {
        // d about 0.001, dmin about 0.004
        let d = 0x1000u16 | (random() as u16 & 0x3ff);
        let dmin = 0x1800u16 | (random() as u16 & 0x3ff);
        w[headers + s * 16..headers + s * 16 + 2].copy_from_slice(&d.to_le_bytes());
        w[headers + s * 16 + 2..headers + s * 16 + 4].copy_from_slice(&dmin.to_le_bytes());
    }
    let weight = |r: usize, k: usize| -> f64 {
        let (g, i) = (r * n_in / 32 + k / 32, k % 32);
        let byte = w[g * 16 + i % 16 / 4 * 4 + i % 4];
        let q = if i < 16 { byte & 15 } else { byte >> 4 };
        let h = &w[headers + g / 8 * 16..][..16];
        let (d, dmin) = (
            f16_to_f32(u16::from_le_bytes([h[0], h[1]])),
            f16_to_f32(u16::from_le_bytes([h[2], h[3]])),
        );
        let b = &h[4..];
        let j = g % 8;
        let (sc, m) = if j < 4 {
            (b[j] & 63, b[j + 4] & 63)
        } else {
            (
                (b[j + 4] & 15) | (b[j - 4] >> 6) << 4,
                (b[j + 4] >> 4) | (b[j] >> 6) << 4,
            )
        };
        f64::from(d) * f64::from(sc) * f64::from(q) - f64::from(dmin) * f64::from(m)
    };
    let x: Vec<f32> = (0..n_rows * n_in)
        .map(|_| (random() % 2001) as f32 / 1000.0 - 1.0)
        .collect();
    let n_tiles = n_rows.div_ceil(256);
    let xb: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let (xd, wd) = (memory.alloc_with(&xb).unwrap(), memory.alloc_with(&w).unwrap());
    let tiles = memory.alloc((n_tiles * 256 * n_in * 2) as u64).unwrap();
    let y = memory.alloc((n_rows * n_out * 4) as u64).unwrap();
    let mut config = LaunchConfig::new([n_tiles as u32, n_in as u32 / 64, 1], [256, 1, 1]);
    let report = launch(
        module.kernel("wide_tiles").unwrap(),
        &memory,
        &config,
        &Arguments::new()
            .ptr(tiles)
            .ptr(xd)
            .i32(n_rows as i32)
            .i32(n_in as i32),
    )
    .unwrap();
    println!("tiles: {} findings", report.findings.len());
    config.grid = [n_tiles as u32, n_out.div_ceil(128) as u32, 1];
    config.shared_bytes = 6 * 32768 + 1024;
    let started = Instant::now();
    let arguments = Arguments::new()
        .ptr(y)
        .ptr(wd)
        .ptr(tiles)
        .i32(n_rows as i32)
        .i32(n_in as i32)
        .i32(n_out as i32)
        .f32(64.0);
    let report = launch(
        module.kernel("matmul_wide").unwrap(),
        &memory,
        &config,
        &arguments,
    )
    .unwrap();
    for finding in &report.findings {
        println!("{finding}");
    }
    println!(
        "{:?}; {} conflicts of {} wavefronts",
        started.elapsed(),
        report.counters.bank_conflicts(),
        report.counters.shared.wavefronts
    );
    if report.findings.iter().any(|f| f.kind.is_fatal()) {
        return;
    }
    let out = memory.read_vec(y, n_rows * n_out * 4).unwrap();
    let (mut error, mut norm, mut worst) = (0f64, 0f64, 0f64);
    for m in 0..n_rows {
        for r in 0..n_out {
            if (m * 31 + r) % 7 != 0 {
                continue;
            }
            let expected: f64 = (0..n_in).map(|k| weight(r, k) * f64::from(x[m * n_in + k])).sum();
            let at = (m * n_out + r) * 4;
            let found = f64::from(f32::from_le_bytes(out[at..at + 4].try_into().unwrap()));
            error += (found - expected).powi(2);
            norm += expected.powi(2);
            worst = worst.max((found - expected).abs());
        }
    }
    println!("relative error {:.3e}, worst {worst:.3e}", (error / norm).sqrt());
    // Gated: both matrices are the first, so silu(v) v.
    config.grid = [n_tiles as u32, n_out.div_ceil(64) as u32, 1];
    let arguments = Arguments::new()
        .ptr(y)
        .ptr(wd)
        .ptr(wd)
        .ptr(tiles)
        .i32(n_rows as i32)
        .i32(n_in as i32)
        .i32(n_out as i32)
        .f32(64.0);
    let report = launch(
        module.kernel("matmul_wide_gated").unwrap(),
        &memory,
        &config,
        &arguments,
    )
    .unwrap();
    for finding in &report.findings {
        println!("{finding}");
    }
    let gated = memory.read_vec(y, n_rows * n_out * 4).unwrap();
    let (mut error, mut norm) = (0f64, 0f64);
    for (a, b) in out.chunks(4).zip(gated.chunks(4)) {
        let v = f64::from(f32::from_le_bytes(a.try_into().unwrap()));
        let expected = v / (1.0 + (-v).exp()) * v;
        error += (f64::from(f32::from_le_bytes(b.try_into().unwrap())) - expected).powi(2);
        norm += expected.powi(2);
    }
    println!(
        "gated: {} findings, relative error {:.3e}",
        report.findings.len(),
        (error / norm).sqrt()
    );
    if env::args().nth(2).is_some() {
        return;
    }
    let device = DeviceProfile::find("h200").unwrap();
    for tokens in [512u32, 2048] {
        for (name, n_out, n_in) in [
            ("qkv", 6144u32, 4096u32),
            ("o", 4096, 4096),
            ("gated", 14336, 4096),
            ("down", 4096, 14336),
            ("value", 1024, 4096),
        ] {
            let mut memory = DeviceMemory::sparse(1 << 34);
            let module = Module::load(&ptx, &mut memory).unwrap();
            let w = memory
                .alloc(u64::from(n_out) * u64::from(n_in) / 256 * 144)
                .unwrap();
            let tiles = memory.alloc(u64::from(tokens) * u64::from(n_in) * 2).unwrap();
            let xf = memory.alloc(u64::from(tokens) * u64::from(n_in) * 4).unwrap();
            let y = memory.alloc(u64::from(tokens) * u64::from(n_out) * 4).unwrap();
            let mut config = LaunchConfig::new([tokens / 256, n_out / 128, 1], [256, 1, 1]);
            config.shared_bytes = 6 * 32768 + 1024;
            config.checks = Checks::NONE;
            let arguments = Arguments::new()
                .ptr(y)
                .ptr(w)
                .ptr(tiles)
                .i32(tokens as i32)
                .i32(n_in as i32)
                .i32(n_out as i32)
                .f32(64.0);
            let mut residency = Residency::new();
            let is_gated = name == "gated";
            let (kernel, arguments) = if is_gated {
                config.grid[1] *= 2;
                let w_up = memory
                    .alloc(u64::from(n_out) * u64::from(n_in) / 256 * 144)
                    .unwrap();
                (
                    "matmul_wide_gated",
                    Arguments::new()
                        .ptr(y)
                        .ptr(w)
                        .ptr(w_up)
                        .ptr(tiles)
                        .i32(tokens as i32)
                        .i32(n_in as i32)
                        .i32(n_out as i32)
                        .f32(64.0),
                )
            } else {
                ("matmul_wide", arguments)
            };
            let one = estimate(
                module.kernel(kernel).unwrap(),
                &memory,
                &config,
                &arguments,
                250,
                device,
                &mut residency,
                &Start::after(device),
            )
            .unwrap();
            let tflops = if is_gated { 2.0 } else { 1.0 }
                * 2.0
                * f64::from(tokens)
                * f64::from(n_out)
                * f64::from(n_in)
                / one.us
                / 1e6;
            config.grid = [tokens / 256, n_in / 64, 1];
            config.shared_bytes = 0;
            let tile = estimate(
                module.kernel("wide_tiles").unwrap(),
                &memory,
                &config,
                &Arguments::new()
                    .ptr(tiles)
                    .ptr(xf)
                    .i32(tokens as i32)
                    .i32(n_in as i32),
                27,
                device,
                &mut residency,
                &Start::after(device),
            )
            .unwrap();
            println!(
                "{tokens} {name}: {:.1} us {tflops:.0} TFLOP/s limiter {} rounds {:.2} issue {:.2} dram {:.2}; tiles {:.1} us {}",
                one.us, one.limiter, one.rounds, one.issue_share, one.dram_share, tile.us, tile.limiter
            );
        }
    }
}
