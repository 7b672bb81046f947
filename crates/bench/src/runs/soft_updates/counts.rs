//! What the modes cost, counted: flushes of batches, and memory of dependencies.

use std::sync::Arc;

use block::{Disk, Memory};
use ffs::Mode;

use super::name_of;
use crate::plan::Plan;
use crate::report::{Cell, Check, Run, Table, short};
use crate::runs::claims;
use crate::target::{BLOCK_MODES, BlockSetup, Blocks, Result, Target};
use crate::workloads::names;

const LEN: u64 = 256 << 20;
/// Operations that are made durable together.
const BATCHES: [u64; 3] = [1, 100, 10_000];
/// Batches of a figure; fewer of the large ones.
const OPS: u64 = 10_000;
const BATCHES_MIN: u64 = 3;
/// Files whose dependencies are weighed.
const FILES: u64 = 1_000;

const MEMORY: &str = "DRAM of dependencies, for 1,000 files";
/// The paper's, bytes.
const PAPER_BYTES: f64 = 300_000.0;

fn in_memory(mode: Mode) -> Result<Blocks> {
    let setup = BlockSetup::in_mode(mode, LEN);
    let disk = Disk::new(Arc::new(Memory::new(LEN)));
    setup.format(&disk)?;
    setup.mount("counted", disk)
}

/// Creates in batches, each made durable by a sync: what the disk is asked for each.
pub fn batches(plan: &Plan) -> Result<Table> {
    let columns = [
        "creates in a batch",
        "target",
        "writes/op",
        "blocks/op",
        "flushes/op",
    ];
    let mut table = Table::new("Creates made durable in batches", &columns);
    for batch in BATCHES {
        for (name, mode) in BLOCK_MODES {
            let blocks = in_memory(mode)?;
            let engine = &blocks.engine;
            engine.sync()?;
            let count = (plan.scaled(OPS) / batch).clamp(BATCHES_MIN, 100);
            let files = names("f", count * batch)?;
            let before = blocks.disk.stats();
            for batch in files.chunks(batch as usize) {
                batch
                    .iter()
                    .try_for_each(|file| engine.create_close(file))?;
                engine.sync()?;
            }
            let stats = blocks.disk.stats().since(&before);
            let each = |count: u64| Cell::from(count as f64 / files.len() as f64);
            table.row([
                batch.into(),
                name_of(name).into(),
                each(stats.writes),
                each(stats.bytes_written / 4096),
                each(stats.flushes),
            ]);
        }
    }
    Ok(table)
}

/// What keeps order among operations that are not written, in mode soft.
pub fn memory(_: &Plan) -> Result<Table> {
    let columns = ["what", "guards and tasks", "bytes"];
    let mut table = Table::new(MEMORY, &columns);
    let (blocks, files) = (in_memory(Mode::Soft)?, names("f", FILES)?);
    let engine = &blocks.engine;
    let mut row = |what: &str| {
        let status = engine.fs().status();
        let (count, bytes) = (status.dependencies as u64, status.dependency_bytes as u64);
        table.row([what.into(), count.into(), bytes.into()]);
    };
    files
        .iter()
        .try_for_each(|file| engine.create_close(file))?;
    row("created, empty");
    files.iter().try_for_each(|file| engine.unlink(file))?;
    row("created and removed before a write");
    for file in &files {
        let open = engine.create(file)?;
        engine.write(open, &[0x67; 4096])?;
        engine.close(open)?;
    }
    row("created with 4 KiB");
    engine.sync()?;
    files.iter().try_for_each(|file| engine.unlink(file))?;
    row("removed, with 4 KiB");
    engine.sync()?;
    row("after a sync");
    Ok(table)
}

/// What the paper says of memory.
pub fn checks(run: &Run) -> Vec<Check> {
    let table = run.tables.iter().find(|table| table.title == MEMORY);
    let bytes = |row: usize| match table?.rows.get(row)?.get(2)? {
        Cell::Count(bytes) => Some(*bytes as f64),
        _ => None,
    };
    let both = bytes(2).zip(bytes(3));
    vec![claims::check(
        "Soft updates: dependencies of 1,000 files take some 300 KB.",
        both.map(|(made, removed)| made.max(removed) <= PAPER_BYTES),
        both.map_or(String::new(), |(made, removed)| {
            format!(
                "{} KB for files that were created with a block, {} KB for those removed.",
                short(made / 1000.0),
                short(removed / 1000.0)
            )
        }),
        "Counted by the sizes of structures, without what maps have in reserve.",
    )]
}
