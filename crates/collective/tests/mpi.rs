//! Datatypes against the MPI libraries of this machine: random ones have the same bounds and bytes in the same order.
//!
//! A recipe is a line of commands on a stack: `b N` bytes, `c N` contiguous, `v COUNT BLOCK STRIDE` hvector,
//! `i N BLOCKS PLACES` hindexed, `k N BLOCK PLACES` hindexed_block, `s N BLOCKS PLACES` struct, `r LOWER EXTENT`
//! resized, `a` and `A` subarray, `d` and `D` darray in C and Fortran order.

#![allow(clippy::unwrap_used, reason = "a test ends where something it relies on fails")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use waystage_collective::{Datatype, Distribution, Order};

/// A generator that needs no crate: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit).cast_signed()
    }

    fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low).cast_unsigned())
    }

    fn list(&mut self, count: i64, low: i64, high: i64) -> Vec<i64> {
        (0..count).map(|_| self.between(low, high)).collect()
    }
}

fn write(recipe: &mut String, command: char, values: &[&[i64]]) {
    recipe.push(command);
    for value in values.iter().copied().flatten() {
        write!(recipe, " {value}").unwrap();
    }
    recipe.push(' ');
}

/// A random datatype; its recipe is appended.
fn datatype(random: &mut Random, depth: u32, recipe: &mut String) -> Datatype {
    if depth == 0 {
        let bytes = random.between(1, 9);
        write(recipe, 'b', &[&[bytes]]);
        return Datatype::bytes(bytes).unwrap();
    }
    let kind = random.below(8);
    if kind == 0 {
        let count = random.between(1, 4);
        let of: Vec<_> = (0..count).map(|_| datatype(random, depth - 1, recipe)).collect();
        let (blocks, at) = (random.list(count, 1, 3), random.list(count, -40, 80));
        write(recipe, 's', &[&[count], &blocks, &at]);
        return Datatype::structure(&blocks, &at, &of.iter().collect::<Vec<_>>()).unwrap();
    }
    let of = datatype(random, depth - 1, recipe);
    let order = if random.below(2) == 0 { Order::C } else { Order::Fortran };
    let upper = order == Order::Fortran;
    let count = random.between(1, 4);
    match kind {
        1 => {
            write(recipe, 'c', &[&[count]]);
            Datatype::contiguous(count, &of).unwrap()
        }
        2 => {
            let (block, stride) = (random.between(1, 3), random.between(-40, 60));
            // Open MPI 4.1 takes a stride of -1 for one that is not given.
            let stride = if stride == -1 { -2 } else { stride };
            write(recipe, 'v', &[&[count, block, stride]]);
            Datatype::hvector(count, block, stride, &of).unwrap()
        }
        3 => {
            let (blocks, at) = (random.list(count, 0, 3), random.list(count, -40, 80));
            // A type without bytes has bounds that libraries disagree on.
            let blocks =
                if blocks.iter().all(|&block| block == 0) { vec![1; blocks.len()] } else { blocks };
            write(recipe, 'i', &[&[count], &blocks, &at]);
            Datatype::hindexed(&blocks, &at, &of).unwrap()
        }
        4 => {
            let (block, at) = (random.between(1, 3), random.list(count, -40, 80));
            write(recipe, 'k', &[&[count, block], &at]);
            Datatype::hindexed_block(block, &at, &of).unwrap()
        }
        5 => {
            let (lower, extent) = (random.between(-9, 9), random.between(1, 60));
            write(recipe, 'r', &[&[lower, extent]]);
            Datatype::resized(lower, extent, &of).unwrap()
        }
        6 => {
            let (part, before) = (random.list(count, 1, 4), random.list(count, 0, 3));
            let sizes: Vec<i64> =
                part.iter().zip(&before).map(|(part, before)| part + before + 1).collect();
            write(recipe, if upper { 'A' } else { 'a' }, &[&[count], &sizes, &part, &before]);
            Datatype::subarray(&sizes, &part, &before, order, &of).unwrap()
        }
        _ => distributed(random, count, order, &of, recipe),
    }
}

fn distributed(
    random: &mut Random,
    count: i64,
    order: Order,
    of: &Datatype,
    recipe: &mut String,
) -> Datatype {
    let grid = random.list(count, 1, 3);
    let rank = random.between(0, grid.iter().product());
    // Every process has a part: bounds of one without differ between libraries.
    let sizes: Vec<i64> = grid.iter().map(|grid| grid * random.between(2, 4)).collect();
    let (mut kinds, mut arguments) = (Vec::new(), Vec::new());
    let distributions: Vec<Distribution> = grid
        .iter()
        .map(|&grid| {
            let kind = if grid == 1 { random.below(3) } else { 1 + random.below(2) };
            let argument =
                if kind == 2 && random.below(2) == 0 { random.between(1, 3) } else { -1 };
            kinds.push(kind);
            arguments.push(argument);
            match (kind, argument) {
                (0, _) => Distribution::None,
                (1, _) => Distribution::Block(None),
                (_, -1) => Distribution::Cyclic(None),
                (_, block) => Distribution::Cyclic(Some(block)),
            }
        })
        .collect();
    let command = if order == Order::C { 'd' } else { 'D' };
    write(recipe, command, &[&[count, rank], &sizes, &kinds, &arguments, &grid]);
    Datatype::darray(rank, &sizes, &distributions, &grid, order, of).unwrap()
}

/// The line that the program in C prints.
fn told(of: &Datatype) -> String {
    let bounds = of.true_bounds();
    let mut line = format!(
        "{} {} {} {} {}:",
        of.size(),
        of.lower(),
        of.extent(),
        bounds.start,
        bounds.end - bounds.start
    );
    for run in of.runs(0..of.size()) {
        for at in run.offset..run.offset + run.length.cast_signed() {
            write!(line, " {at}").unwrap();
        }
    }
    line
}

/// Recipes with what Waystage says of them: positions fit 16 bits, and a line fits the program's buffer.
fn cases(count: usize) -> Vec<(String, String)> {
    let mut random = Random(20);
    let mut found = Vec::new();
    while found.len() < count {
        let mut recipe = String::new();
        let depth = 1 + random.below(4) as u32;
        let of = datatype(&mut random, depth, &mut recipe);
        let bounds = of.true_bounds();
        if bounds.start > -30_000 && bounds.end < 30_000 && of.size() < 4000 && recipe.len() < 4000
        {
            found.push((recipe, told(&of)));
        }
    }
    found
}

fn agrees_with(compiler: &str, known: impl Fn(&str) -> bool, shown: fn(&str) -> &str) {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/mpi_types.c");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mpi_types-{compiler}"));
    let mut compile = Command::new(compiler);
    let Ok(status) = compile.args(["-std=c11", "-O1", "-o"]).arg(&program).arg(&source).status()
    else {
        return; // There is no such MPI library on this machine.
    };
    assert!(status.success(), "{compiler} could not compile {}", source.display());
    let mut cases = cases(3000);
    cases.retain(|(recipe, _)| known(recipe));
    assert!(cases.len() > 300);
    let mut running = Command::new(&program)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = running.stdin.take().unwrap();
    let recipes: String = cases.iter().map(|(recipe, _)| format!("{recipe}\n")).collect();
    let feeding = std::thread::spawn(move || input.write_all(recipes.as_bytes()));
    let output = running.wait_with_output().unwrap();
    feeding.join().unwrap().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), cases.len());
    let mut differ = 0;
    for ((recipe, ours), theirs) in cases.iter().zip(lines) {
        if shown(ours) != shown(theirs) {
            differ += 1;
            if differ <= 5 {
                eprintln!("{recipe}\n  ours   {ours:.300}\n  theirs {theirs:.300}");
            }
        }
    }
    assert_eq!(differ, 0, "of {} datatypes", cases.len());
}

#[test]
fn random_datatypes_are_those_of_open_mpi() {
    agrees_with("mpicc.openmpi", |_| true, |line| line);
}

#[test]
fn random_datatypes_are_those_of_mpich() {
    // MPICH 4.0 forgets in outer types which bounds were set by MPI_Type_create_resized.
    let marks = |recipe: &str| recipe.rfind(|c: char| "raAdD".contains(c));
    let last = |recipe: &str| recipe.rfind(|c: char| c.is_ascii_alphabetic());
    let known = |recipe: &str| {
        marks(recipe).is_none_or(|at| Some(at) == last(recipe) && marks(&recipe[..at]).is_none())
    };
    // Only sizes and bounds: its MPI_Pack leaves out the last bytes of some contiguous datatypes.
    agrees_with("mpicc.mpich", known, |line| line.split(':').next().unwrap_or(line));
}
