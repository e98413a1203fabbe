//! A member's hello is checked before it is used: a process of rank 0 with bounded memory, and
//! members that lie about every size [I19].

use nkv_actors::message::{
    ExportedMemory, Hello, MESSAGES_VERSION, Purpose, RankInfo, Refusal, SeenView, Term, Welcome,
};
use nkv_actors::{Credentials, Node, NodeConfig};
use nkv_store::SegmentLayout;
use nkv_store::layout::Region;
use nkv_transport::wire::auth::{AuthMeans, Channel, prove};
use nkv_transport::wire::{
    Address, BoxStream, MAX_FRAME_BYTES, Net, OsNet, read_frame, write_frame,
};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long rank 0 may take to listen, or to answer.
const LIMIT: Duration = Duration::from_secs(60);
/// How long rank 0 runs if the test does not end it.
const STAYS: Duration = Duration::from_secs(600);
/// Address space of rank 0 in KiB: a node of this size takes a tenth.
const LIMIT_KIB: u64 = 12_000_000;
const INCARNATION: u64 = 77;

/// The part of rank 0 in the test below; started by itself it does nothing.
#[test]
fn role() {
    if std::env::var_os("FORGED_JOB").is_none() {
        return;
    }
    let get = |k: &str| std::env::var(k).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let config = NodeConfig {
            job: get("FORGED_JOB"),
            rank: 0,
            world_size: 2,
            port: get("FORGED_PORT").parse().unwrap(),
            heap_bytes: 8 << 20,
            ..NodeConfig::default()
        };
        let _node = Node::start(config).await.unwrap();
        tokio::time::sleep(STAYS).await;
    });
}

/// A control connection that went through the handshake.
async fn enter(at: &Address, credentials: &Credentials) -> Result<BoxStream, String> {
    let mut stream = OsNet.connect(at).await.map_err(|e| e.to_string())?;
    let means = credentials.means(at).map_err(|e| e.to_string())?;
    let (job, random) = (credentials.job(), credentials.random());
    let proven = prove(&mut stream, means, Channel::Control, job, random).await;
    proven.map(|session| session.seal(stream)).map_err(|e| e.to_string())
}

struct Rank0 {
    process: Child,
    job: String,
    at: Address,
}

impl Drop for Rank0 {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

impl Rank0 {
    fn start() -> Self {
        let job = format!("forged-{}", std::process::id());
        let any = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = any.local_addr().unwrap().port();
        drop(any);
        let exe = std::env::current_exe().unwrap();
        let role = format!("exec {} forged_rank::role --exact --nocapture", exe.display());
        let process = Command::new("sh")
            .args(["-c", &format!("ulimit -v {LIMIT_KIB}; {role}")])
            .env("FORGED_JOB", &job)
            .env("FORGED_PORT", port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, job, at: Address::Tcp(format!("127.0.0.1:{port}")) }
    }

    /// A connection with the credentials of the job.
    async fn connect(&mut self) -> BoxStream {
        let credentials = Credentials::of_client(&self.job, None);
        let trying = async {
            loop {
                if let Ok(stream) = enter(&self.at, &credentials).await {
                    return stream;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let stream = tokio::time::timeout(LIMIT, trying).await;
        let ended = self.process.try_wait().unwrap();
        stream.unwrap_or_else(|_| panic!("nobody listens; rank 0 ended: {ended:?}"))
    }

    /// The answer of rank 0 to a member with this description.
    async fn hello(&mut self, info: RankInfo, siblings: Vec<(u32, u64)>) -> Welcome {
        let mut stream = self.connect().await;
        // It has the cookie, and hashes keys as the job does.
        let Ok(AuthMeans::Cookie(cookie)) = Credentials::of_client(&self.job, None).on_tcp() else {
            panic!("no cookie of a job that listens");
        };
        let key_fingerprint = cookie.key_hasher(&self.job).fingerprint();
        let info = RankInfo { key_fingerprint, ..info };
        let (obeyed, seen) = (Term::default(), SeenView::default());
        let purpose = Purpose::Rank { info: Box::new(info), obeyed, holds: false, seen, siblings };
        let hello = Hello { version: MESSAGES_VERSION, job: self.job.clone(), purpose };
        let mut buf = Vec::new();
        write_frame(&mut stream, &mut buf, 0, &hello).await.unwrap();
        let answer = read_frame::<_, Welcome>(&mut stream, &mut buf, MAX_FRAME_BYTES);
        let answer = tokio::time::timeout(LIMIT, answer).await.expect("no answer");
        let ended = self.process.try_wait().unwrap();
        assert!(ended.is_none(), "one hello ended the master's process: {ended:?}");
        answer.unwrap().expect("closed without a word").1
    }
}

type Forgery = fn(&mut RankInfo);

/// 8 TiB, the largest possible segment.
fn largest() -> RankInfo {
    let (slots, arena_bytes) = (1u32 << 31, 1u64 << 43);
    let arena_offset = (4096 + u64::from(slots) * 64).next_multiple_of(4096);
    RankInfo {
        rank: 1,
        segment_id: 0,
        world_size: 2,
        incarnation: INCARNATION,
        boot_id: 1,
        numa_node: Some(u32::MAX),
        rack: format!("/{}", vec!["x".repeat(15); 8].join("/")).parse().unwrap(),
        pid: 1,
        control: Address::Tcp("127.0.0.1:1".into()),
        local: None,
        data: None,
        fabric: None,
        memory: ExportedMemory::Private,
        key_fingerprint: 0,
        prefault: false,
        disk: false,
        http: None,
        layout: SegmentLayout {
            segment_bytes: arena_offset + arena_bytes,
            slots,
            header_base: 4096,
            arena: Region { offset: arena_offset, len: arena_bytes },
            quarantine_ms: 5,
            ..SegmentLayout::default()
        },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i19_a_member_that_lies_about_its_size_does_not_end_the_master() {
    let mut rank0 = Rank0::start();
    let lies: [(&str, Forgery); 3] = [
        ("sizes that cannot be", |i| {
            (i.layout.slots, i.layout.arena.len) = (u32::MAX, u64::MAX / 2)
        }),
        ("an arena beyond its segment", |i| i.layout.segment_bytes = 1 << 20),
        ("an arena of 16 TiB", |i| {
            (i.layout.segment_bytes, i.layout.arena.len) = (1 << 46, 1 << 44)
        }),
    ];
    for (what, lie) in lies {
        let mut info = largest();
        lie(&mut info);
        let answer = rank0.hello(info, Vec::new()).await;
        let refused = matches!(&answer, Welcome::Refused { why: Refusal::Invalid(_) });
        assert!(refused, "{what}: {answer:?}");
    }
    let answer = rank0.hello(largest(), vec![(64, 5)]).await;
    assert!(matches!(&answer, Welcome::Refused { why: Refusal::Invalid(_) }), "{answer:?}");
    // A possible size is accepted, however large: it costs the master no memory yet.
    let answer = rank0.hello(largest(), vec![(1, 5)]).await;
    assert!(matches!(answer, Welcome::Rank { .. }), "{answer:?}");
    rank0.connect().await;
}
