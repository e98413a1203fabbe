//! The writer process: this test's own binary, started again. It runs the step of each line on
//! stdin and answers with one line, so that a test can stop it between any two steps, or within
//! one. It ends when stdin ends.

use crate::content;
use crate::past_the_handle::own_verbs;
use nkv::message::PlanDesc;
use nkv::{
    Blocking, ClientConfig, Error, ObjectView, PutOptions, Result, TransportChoice, WritePlan,
};
use nkv_transport::verbs::Op;
use std::io::{BufRead, Write};
use std::process::ExitCode;

/// What a line asks for.
enum Step<'a> {
    /// `open KEY BYTES PAGE_BYTES RANK VERSION`: answers with the plan.
    Open([&'a str; 5]),
    /// `write PAGE`
    Write(u32),
    /// `raw`: writes the whole object without the handle, with the plan's token and without
    /// checking a deadline.
    Raw,
    /// `publish`
    Publish,
    /// `abort`
    Abort,
    /// `view KEY BYTES VERSION`: views the object in place, and keeps the view.
    View([&'a str; 3]),
    /// `look`: checks that the bytes of the view are unchanged.
    Observe,
    /// `unview`
    Unview,
}

impl<'a> Step<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["open", key, bytes, page, rank, version] => {
                Some(Self::Open([key, bytes, page, rank, version]))
            }
            ["write", page] => page.parse().ok().map(Self::Write),
            ["raw"] => Some(Self::Raw),
            ["publish"] => Some(Self::Publish),
            ["abort"] => Some(Self::Abort),
            ["view", key, bytes, version] => Some(Self::View([key, bytes, version])),
            ["observe"] => Some(Self::Observe),
            ["unview"] => Some(Self::Unview),
            _ => None,
        }
    }
}

/// Runs steps until stdin ends.
pub fn main(task: &str) -> ExitCode {
    let words: Vec<&str> = task.split(' ').collect();
    let [node, job, transport] = words[..] else {
        eprintln!("not a task: {task}");
        return ExitCode::FAILURE;
    };
    let made = connect(node, job, transport);
    let mut writer = match made {
        Ok(writer) => writer,
        Err(e) => {
            print_line(&format!("err {e}"));
            return ExitCode::FAILURE;
        }
    };
    print_line("ok");
    for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
        let done = match Step::parse(&line) {
            Some(step) => writer.take(step),
            None => Err(Error::invalid(format!("no step: {line}"))),
        };
        match done {
            Ok(answer) => print_line(&format!("ok {answer}")),
            Err(e) => print_line(&format!("err {e}")),
        }
    }
    writer.client.close();
    ExitCode::SUCCESS
}

/// One line, one write.
fn print_line(line: &str) {
    let text = format!("{}\n", line.replace('\n', " "));
    // If the parent no longer reads, stdin has ended too.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn connect(node: &str, job: &str, transport: &str) -> Result<Writer> {
    let transport: TransportChoice = transport.parse()?;
    let config = ClientConfig { job: job.to_string(), transport, ..ClientConfig::default() };
    let node = node.parse().map_err(|e| Error::invalid(format!("{node}: {e:?}")))?;
    let client = Blocking::connect(&node, config)?;
    Ok(Writer {
        client,
        job: job.to_string(),
        transport,
        plan: None,
        last: None,
        value: Vec::new(),
        view: None,
    })
}

struct Writer {
    client: Blocking,
    job: String,
    transport: TransportChoice,
    plan: Option<WritePlan>,
    // The plan as a kernel or NIC would keep it, beyond its end.
    last: Option<PlanDesc>,
    value: Vec<u8>,
    view: Option<ObjectView>,
}

impl Writer {
    fn take(&mut self, step: Step<'_>) -> Result<String> {
        match step {
            Step::Open(words) => self.open(words),
            Step::Write(page) => self.write(page),
            Step::Raw => self.raw(),
            Step::Publish => {
                let plan = self.plan.take().ok_or_else(no_plan)?;
                self.client.publish(plan)?;
                Ok(String::new())
            }
            Step::Abort => {
                let plan = self.plan.take().ok_or_else(no_plan)?;
                self.client.abort(plan).map(|()| String::new())
            }
            Step::View([key, bytes, version]) => {
                self.value =
                    content::bytes(key.as_bytes(), number(version)?, number(bytes)? as usize);
                self.view = Some(self.client.get_view(key.as_bytes())?);
                self.observe()
            }
            Step::Observe => self.observe(),
            Step::Unview => {
                self.view = None;
                Ok(String::new())
            }
        }
    }

    fn observe(&self) -> Result<String> {
        let view = self.view.as_deref().unwrap_or_default();
        match view == self.value {
            true => Ok(String::new()),
            false => Err(Error::internal("the view shows other bytes")),
        }
    }

    fn open(&mut self, [key, bytes, page, rank, version]: [&str; 5]) -> Result<String> {
        let (bytes, version) = (number(bytes)?, number(version)?);
        self.value = content::bytes(key.as_bytes(), version, bytes as usize);
        let opts = PutOptions::default()
            .preferred_rank(number(rank)? as u32)
            .page_bytes(number(page)? as u32);
        let plan = self.client.open_for_write(key.as_bytes(), bytes, &opts)?;
        let desc = plan.desc().cloned().ok_or_else(no_plan)?;
        let text = serde_json::to_string(&desc).map_err(|e| Error::internal(e.to_string()))?;
        self.last = Some(desc);
        self.plan = Some(plan);
        Ok(text)
    }

    fn write(&mut self, page: u32) -> Result<String> {
        let plan = self.plan.as_ref().ok_or_else(no_plan)?;
        let mut pages = self.value.chunks(plan.page_bytes() as usize);
        let bytes = pages.nth(page as usize).unwrap_or_default();
        plan.write_page(page, bytes).map(|()| String::new())
    }

    fn raw(&mut self) -> Result<String> {
        let desc = self.last.as_ref().ok_or_else(no_plan)?;
        let own = own_verbs(&self.client, &self.job, self.transport, desc.meta.at.incarnation)?;
        let mut ops = [Op::Write { offset: desc.meta.object.payload_off(), src: &self.value }];
        own.post(desc.token, &mut ops)?;
        Ok(String::new())
    }
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|e| Error::invalid(format!("{text}: {e}")))
}

fn no_plan() -> Error {
    Error::invalid("no plan is open here")
}
