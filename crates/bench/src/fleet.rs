//! Worker processes and the barrier before each measured part.

use super::adapters::Counts;
use super::worker::Task;
use super::worker::measure::{Block, Done};
use crate::progress;
use anyhow::{Context, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use weft_cli_common::launch;

/// A process that does tasks.
struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// Several of them.
pub struct Fleet {
    workers: Vec<Worker>,
}

/// The cost of a measured part, for all workers.
#[derive(Debug)]
pub struct Phase {
    /// From the first start to the last end.
    pub seconds: f64,
    /// Processor time of all workers.
    pub cpu_s: f64,
    /// Each worker's own results.
    pub done: Vec<Done>,
}

impl Phase {
    /// Operations of the workers' RDMA adapters.
    pub fn adapters(&self) -> impl Iterator<Item = &Counts> {
        self.done.iter().map(|done| &done.adapter)
    }
}

impl Fleet {
    /// Starts `count` workers. They end with this process.
    pub fn start(count: usize) -> Result<Fleet> {
        let workers = (0..count).map(|_| Worker::start()).collect::<Result<Vec<_>>>()?;
        Ok(Fleet { workers })
    }

    /// Makes worker `index` prepare a task. Returns what it reports about it.
    pub fn prepare(&mut self, index: usize, task: &Task) -> Result<String> {
        self.workers[index].send(task)?;
        self.workers[index].receive()
    }

    /// Makes these workers do their prepared tasks at the same time.
    pub fn go(&mut self, which: Range<usize>) -> Result<Phase> {
        let workers = &mut self.workers[which];
        for worker in &mut *workers {
            worker.to.write_all(b"go\n").context("a worker has ended")?;
        }
        let done = workers.iter_mut().map(Worker::receive).collect::<Result<Vec<Done>>>()?;
        progress::tell();
        let begin_ns = done.iter().map(|one| one.begin_ns).min().unwrap_or(0);
        let end_ns = done.iter().map(|one| one.end_ns).max().unwrap_or(0);
        let seconds = (end_ns - begin_ns) as f64 / 1e9;
        Ok(Phase { seconds, cpu_s: done.iter().map(|one| one.cpu_s).sum(), done })
    }

    /// Makes all workers prepare their tasks at the same time.
    pub fn prepare_all(&mut self, tasks: &[Task]) -> Result<()> {
        for (worker, task) in self.workers.iter_mut().zip(tasks) {
            worker.send(task)?;
        }
        self.workers[..tasks.len()].iter_mut().try_for_each(|worker| worker.receive::<String>().map(drop))
    }

    /// Makes all workers do their tasks at the same time.
    pub fn run(&mut self, tasks: &[Task]) -> Result<Phase> {
        self.prepare_all(tasks)?;
        self.go(0..tasks.len())
    }

    /// The process number of a worker.
    pub fn pid(&self, index: usize) -> u32 {
        self.workers[index].child.id()
    }
}

impl Worker {
    fn start() -> Result<Worker> {
        let mut command =
            Command::new(std::env::current_exe().context("cannot find the path of this program")?);
        command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped());
        launch::end_with_parent(&mut command);
        let mut child = command.spawn().context("cannot start a worker")?;
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Ok(Worker { child, to, from: BufReader::new(from) })
    }

    fn send(&mut self, task: &Task) -> Result<()> {
        let line = serde_json::to_string(task)?;
        writeln!(self.to, "{line}").context("a worker has ended")
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("a worker has ended");
        }
        let result: Result<T, String> = serde_json::from_str(&line)?;
        result.map_err(|text| anyhow!(text))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already. There is nothing else to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tasks for `clients` workers, each of which gets one block of a file.
pub fn per_client(clients: usize, bytes: u64, task: impl Fn(Block) -> Task) -> Vec<Task> {
    (0..clients as u64).map(|rank| task(Block { offset: rank * bytes, bytes })).collect()
}
