//! Matrix operations of warpgroups with transposed matrices in shared memory, in which the elements of one k are contiguous, against plain
//! loops.

use tokenmill_ptx_sim::LaunchConfig;

use crate::bench::{HEADER, Values, run_module};

/// Rows of A, columns of B, and k: two operations, and several patterns of rows.
const ROWS: usize = 64;
const COLUMNS: usize = 128;
const K: usize = 32;
/// Bytes of shared memory: both matrices, then the memory that an operation with a wrong flag reads.
const ROOM: usize = 24 << 10;

/// Bits 62 and 63 of a descriptor, and bytes of a row of the pattern, 16 without a swizzle.
const LAYOUTS: [(u64, usize); 4] = [(0, 16), (1, 128), (2, 64), (3, 32)];

/// Returns the address of an element.
fn offset((swizzle, row_bytes): (u64, usize), row: usize, k: usize) -> usize {
    let n_parts = row_bytes / 16;
    let part = row / 8 % n_parts;
    let place = match swizzle {
        0 => part,
        1 => part ^ (k % 8),
        2 => part ^ (k / 2 % 4),
        _ => part ^ (k / 4 % 2),
    };
    row / 8 / n_parts * (K * row_bytes) + k * row_bytes + place * 16 + row % 8 * 2
}

/// Returns the bytes of a descriptor between patterns along rows, and between eight of k. Without a swizzle the two are exchanged.
fn descriptor(layout: (u64, usize)) -> u64 {
    let (along_rows, along_k) = ((K * layout.1) as u64, 8 * layout.1 as u64);
    let [leading, stride] = if layout.0 == 0 {
        [along_k, along_rows]
    } else {
        [along_rows, along_k]
    };
    layout.0 << 62 | (stride / 16) << 32 | (leading / 16) << 16
}

fn image(layout: (u64, usize), values: &[i32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * 2];
    for (index, &value) in values.iter().enumerate() {
        let at = offset(layout, index / K, index % K);
        // bf16 of a small whole number.
        let bits = ((value as f32).to_bits() >> 16) as u16;
        bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
    bytes
}

/// 128 threads fill shared memory with both images, multiply, and store the accumulators, register by register.
fn kernel(layout: (u64, usize), flags: &str) -> String {
    let list: Vec<String> = (0..COLUMNS / 2).map(|index| format!("%c{index}")).collect();
    let list = list.join(", ");
    let multiply = |step: usize| {
        let (adds, at) = (u32::from(step > 0), step * 16 * layout.1 / 16);
        format!(
            "setp.ne.u32 %p, {adds}, 0; add.u64 %da, %pa, {at}; add.u64 %db, %pb, {at};
            wgmma.mma_async.sync.aligned.m64n{COLUMNS}k16.f32.bf16.bf16 {{{list}}}, %da, %db, %p, 1, 1, {flags};\n"
        )
    };
    let steps: String = (0..K / 16).map(multiply).collect();
    let stores: Vec<String> = (0..COLUMNS / 2)
        .map(|index| format!("st.global.u32 [%out+{}], %c{index};\n", 512 * index))
        .collect();
    let stores = stores.concat();
    let a_bytes = ROWS * K * 2;
    format!(
        "{}.visible .entry k(.param .u64 images, .param .u64 out) {{
        .shared .align 1024 .b8 s[{ROOM}];
        .reg .pred %p, %q; .reg .b32 %c<{}>; .reg .b32 %v<4>; .reg .b32 %t, %to, %x, %y;
        .reg .b64 %in, %out, %pa, %pb, %da, %db;
        ld.param.u64 %in, [images]; ld.param.u64 %out, [out];
        mov.u32 %t, %tid.x; mad.wide.u32 %out, %t, 4, %out;
        mul.lo.u32 %to, %t, 16; mad.wide.u32 %in, %to, 1, %in; mov.u32 %x, s; add.u32 %to, %to, %x;
        mov.u32 %y, 0;
        L: ld.global.v4.u32 {{%v0, %v1, %v2, %v3}}, [%in]; st.shared.v4.u32 [%to], {{%v0, %v1, %v2, %v3}};
        add.u32 %to, %to, 2048; add.u64 %in, %in, 2048; add.u32 %y, %y, 2048; setp.lt.u32 %q, %y, {ROOM};
        @%q bra L;
        fence.proxy.async.shared::cta; bar.sync 0;
        mov.u32 %x, s; shr.u32 %x, %x, 4; cvt.u64.u32 %pa, %x; or.b64 %pa, %pa, {}; add.u64 %pb, %pa, {};
        wgmma.fence.sync.aligned;
        {steps}
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
        {stores}
        ret; }}",
        HEADER.replace("sm_90", "sm_90a"),
        COLUMNS / 2,
        descriptor(layout),
        a_bytes / 16,
    )
}

/// Returns whether the product is right, if both matrices are laid out transposed and the operation has these flags; there must be no findings.
fn is_right(layout: (u64, usize), flags: &str) -> bool {
    let mut values = Values(7);
    let mut whole = |n: usize| -> Vec<i32> { (0..n).map(|_| (values.bits() % 17) as i32 - 8).collect() };
    let (a, b) = (whole(ROWS * K), whole(COLUMNS * K));
    let mut images = image(layout, &a);
    images.extend(image(layout, &b));
    images.resize(ROOM, 0);
    let mut buffers = [images, vec![0; ROWS * COLUMNS * 4]];
    let config = LaunchConfig::new([1, 1, 1], [128, 1, 1]);
    let report = run_module(&kernel(layout, flags), &config, &mut buffers);
    assert_eq!(report.findings, [], "{layout:?} {flags}");
    let (words, _) = buffers[1].as_chunks::<4>();
    (0..ROWS * COLUMNS).all(|index| {
        let (row, column) = (index / COLUMNS, index % COLUMNS);
        let expected: i32 = (0..K).map(|k| a[row * K + k] * b[column * K + k]).sum();
        // A thread has two of every eight columns, in rows 8 apart.
        let register = column / 8 * 4 + row / 8 % 2 * 2 + column % 2;
        let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
        f32::from_le_bytes(words[register * 128 + thread]) == expected as f32
    })
}

#[test]
fn warpgroups_multiply_transposed_matrices() {
    for layout in LAYOUTS {
        assert!(is_right(layout, "1, 1"), "{layout:?}");
    }
}

#[test]
fn each_matrix_has_a_flag_of_its_own() {
    let layout = (1, 128);
    for flags in ["0, 1", "1, 0"] {
        assert!(!is_right(layout, flags), "{flags}");
    }
}
