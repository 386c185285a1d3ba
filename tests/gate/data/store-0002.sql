BEGIN TRANSACTION;
CREATE TABLE artifact (
	outcome_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	file TEXT NOT NULL, 
	CONSTRAINT pk_artifact PRIMARY KEY (outcome_id, name), 
	CONSTRAINT fk_artifact_outcome_id FOREIGN KEY(outcome_id) REFERENCES outcome (id)
);
INSERT INTO "artifact" VALUES(3,'tokens.bin','2d/2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881.bin');
CREATE TABLE baseline (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	name TEXT NOT NULL, 
	"plan" TEXT NOT NULL, 
	machine_class TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	run_id INTEGER, 
	saved VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_baseline PRIMARY KEY (id), 
	CONSTRAINT uq_baseline_digest UNIQUE (digest), 
	CONSTRAINT fk_baseline_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "baseline" VALUES(1,'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff','main~1','demo','ci-cpu','first arm of a comparison',3,'2026-11-22T16:51:41.819130+00:00');
INSERT INTO "baseline" VALUES(2,'6574b43db47ccd58822cdacf113c3ab867e70dd82f2087a1550644dea4232cc5','demo','demo','ci-cpu','first',2,'2026-11-22T16:51:41.919515+00:00');
CREATE TABLE cachemark_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT cachemark_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "cachemark_version" VALUES('0002');
CREATE TABLE "case" (
	"key" VARCHAR(16) NOT NULL, 
	body TEXT NOT NULL, 
	cell VARCHAR(16) NOT NULL, 
	model TEXT NOT NULL, 
	method TEXT NOT NULL, 
	budget TEXT NOT NULL, 
	codec TEXT NOT NULL, 
	role TEXT NOT NULL, 
	batch INTEGER NOT NULL, 
	seeds TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	engine TEXT NOT NULL, 
	device_class TEXT NOT NULL, 
	CONSTRAINT pk_case PRIMARY KEY ("key")
);
INSERT INTO "case" VALUES('d331a8532217cf78','{"batch":1,"budget":"1/4","codec":"native","conditions":"labels","device_class":"cpu","dtype":"float32","engine":"eager","evaluation":{},"grid":[8,8],"knobs":{"number":1},"method":"linear","model":"tiny","repeats":5,"role":"arm","samples":64,"sampling":{"cfg_interval":-1,"cfg_scale":1.0,"cfg_schedule":"constant","diffusion_steps":0,"steps":0,"temperature":1.0,"top_k":0,"top_p":1.0},"seeds":"s64","variant":"","warmup":2,"weights":"random:0"}','8167c0a69ef23de0','tiny','linear','1/4','native','arm',1,'s64','float32','eager','cpu');
INSERT INTO "case" VALUES('5e1fe8d58c4289fe','{"batch":1,"budget":"1/4","codec":"native","conditions":"labels","device_class":"cpu","dtype":"float32","engine":"eager","evaluation":{},"grid":[8,8],"knobs":{"number":2},"method":"linear","model":"tiny","repeats":5,"role":"arm","samples":64,"sampling":{"cfg_interval":-1,"cfg_scale":1.0,"cfg_schedule":"constant","diffusion_steps":0,"steps":0,"temperature":1.0,"top_k":0,"top_p":1.0},"seeds":"s64","variant":"","warmup":2,"weights":"random:0"}','8167c0a69ef23de0','tiny','linear','1/4','native','arm',1,'s64','float32','eager','cpu');
INSERT INTO "case" VALUES('14c2685407207f33','{"batch":1,"budget":"1/4","codec":"native","conditions":"labels","device_class":"cpu","dtype":"float32","engine":"eager","evaluation":{},"grid":[8,8],"knobs":{"number":3},"method":"linear","model":"tiny","repeats":5,"role":"arm","samples":64,"sampling":{"cfg_interval":-1,"cfg_scale":1.0,"cfg_schedule":"constant","diffusion_steps":0,"steps":0,"temperature":1.0,"top_k":0,"top_p":1.0},"seeds":"s64","variant":"","warmup":2,"weights":"random:0"}','8167c0a69ef23de0','tiny','linear','1/4','native','arm',1,'s64','float32','eager','cpu');
CREATE TABLE condensed (
	outcome_id INTEGER NOT NULL, 
	metric TEXT NOT NULL, 
	count INTEGER NOT NULL, 
	mean DOUBLE NOT NULL, 
	CONSTRAINT pk_condensed PRIMARY KEY (outcome_id, metric), 
	CONSTRAINT fk_condensed_outcome_id_metric FOREIGN KEY(outcome_id, metric) REFERENCES sample (outcome_id, metric), 
	CONSTRAINT fk_condensed_outcome_id FOREIGN KEY(outcome_id) REFERENCES outcome (id)
);
INSERT INTO "condensed" VALUES(1,'kl',4,0.25);
INSERT INTO "condensed" VALUES(1,'kv_logical',1,4096.0);
INSERT INTO "condensed" VALUES(1,'latency',2,1.125);
INSERT INTO "condensed" VALUES(1,'peak_memory',1,9999.0);
INSERT INTO "condensed" VALUES(1,'psnr',2,30.0);
CREATE TABLE environment (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	device TEXT NOT NULL, 
	machine_class TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	facts TEXT NOT NULL, 
	CONSTRAINT pk_environment PRIMARY KEY (id), 
	CONSTRAINT uq_environment_digest UNIQUE (digest)
);
INSERT INTO "environment" VALUES(1,'12ce1ef4d871d6dca8ccca435057d3b0afc20be9bc89548c9549a39935c93c11','NVIDIA T4','ci-cpu','torch 2.6 / 4 threads','{"host":"a","threads":4}');
CREATE TABLE lease (
	device TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	beat DOUBLE NOT NULL, 
	CONSTRAINT pk_lease PRIMARY KEY (device)
);
CREATE TABLE membership (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	outcome_id INTEGER NOT NULL, 
	carried BOOLEAN NOT NULL, 
	CONSTRAINT pk_membership PRIMARY KEY (id), 
	CONSTRAINT uq_membership_run_id_outcome_id UNIQUE (run_id, outcome_id), 
	CONSTRAINT fk_membership_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_membership_outcome_id FOREIGN KEY(outcome_id) REFERENCES outcome (id)
);
INSERT INTO "membership" VALUES(1,1,1,0);
INSERT INTO "membership" VALUES(2,1,2,0);
INSERT INTO "membership" VALUES(3,2,1,1);
INSERT INTO "membership" VALUES(4,2,3,0);
INSERT INTO "membership" VALUES(5,3,4,0);
INSERT INTO "membership" VALUES(6,3,5,0);
INSERT INTO "membership" VALUES(7,3,6,0);
INSERT INTO "membership" VALUES(8,3,7,0);
CREATE TABLE outcome (
	id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	case_key VARCHAR(16) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	judged BOOLEAN NOT NULL, 
	n_samples INTEGER NOT NULL, 
	judgement TEXT NOT NULL, 
	log TEXT NOT NULL, 
	seconds DOUBLE NOT NULL, 
	skip_key TEXT NOT NULL, 
	output_hash TEXT NOT NULL, 
	facts TEXT NOT NULL, 
	saved VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_outcome PRIMARY KEY (id), 
	CONSTRAINT ck_outcome_status CHECK (status IN ('ok', 'oom', 'timeout', 'throttled', 'contended', 'nan_output', 'unsupported', 'error', 'not_reached')), 
	CONSTRAINT ck_outcome_judged CHECK ((status = 'ok' AND n_samples > 0 AND judged) OR (status <> 'ok' AND n_samples = 0 AND log <> '')), 
	CONSTRAINT uq_outcome_id_status UNIQUE (id, status), 
	CONSTRAINT fk_outcome_trial_id FOREIGN KEY(trial_id) REFERENCES trial (id), 
	CONSTRAINT fk_outcome_case_key FOREIGN KEY(case_key) REFERENCES "case" ("key")
);
INSERT INTO "outcome" VALUES(1,1,'d331a8532217cf78','ok',1,10,'','',2.0,'skip1','','{"kernel":"sdpa"}','2026-11-22T16:51:41.453888+00:00');
INSERT INTO "outcome" VALUES(2,2,'5e1fe8d58c4289fe','oom',0,0,'','out of memory',0.0,'','','{}','2026-11-22T16:51:41.498087+00:00');
INSERT INTO "outcome" VALUES(3,3,'14c2685407207f33','ok',1,10,'','',3.0,'skip3','','{}','2026-11-22T16:51:41.685362+00:00');
INSERT INTO "outcome" VALUES(4,4,'d331a8532217cf78','ok',1,10,'','',1.0,'','','{"pair":{"arm":"before","cell":"A/A linear 1/4","name":"main","number":1,"redone":0,"run":3,"swapped":false,"what":"times"}}','2026-11-22T16:51:41.733890+00:00');
INSERT INTO "outcome" VALUES(5,5,'d331a8532217cf78','ok',1,10,'','',1.0,'','','{"pair":{"arm":"after","cell":"A/A linear 1/4","name":"main","number":1,"redone":0,"run":3,"swapped":false,"what":"times"}}','2026-11-22T16:51:41.753486+00:00');
INSERT INTO "outcome" VALUES(6,6,'d331a8532217cf78','ok',1,10,'','',1.0,'','','{"pair":{"arm":"before","cell":"A/A linear 1/4","name":"main","number":2,"redone":0,"run":3,"swapped":false,"what":"times"}}','2026-11-22T16:51:41.776682+00:00');
INSERT INTO "outcome" VALUES(7,7,'d331a8532217cf78','ok',1,10,'','',1.0,'','','{"pair":{"arm":"after","cell":"A/A linear 1/4","name":"main","number":2,"redone":0,"run":3,"swapped":false,"what":"times"}}','2026-11-22T16:51:41.793722+00:00');
CREATE TABLE run (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	"plan" TEXT NOT NULL, 
	plan_json TEXT NOT NULL, 
	environment_id INTEGER NOT NULL, 
	started VARCHAR(32) NOT NULL, 
	finished VARCHAR(32), 
	state VARCHAR(16) NOT NULL, 
	code TEXT NOT NULL, 
	code_commit TEXT NOT NULL, 
	CONSTRAINT ck_run_state CHECK (state IN ('running', 'finished', 'interrupted', 'failed')), 
	CONSTRAINT fk_run_environment_id FOREIGN KEY(environment_id) REFERENCES environment (id)
);
INSERT INTO "run" VALUES(1,'demo','{"name":"demo"}',1,'2026-11-22T16:51:41.370210+00:00','2026-11-22T16:51:41.515955+00:00','finished','{"commit":"abc1234","dirty":true,"hash":"f00","version":"0.1.0"}','abc1234');
INSERT INTO "run" VALUES(2,'demo','{"name":"demo"}',1,'2026-11-22T16:51:41.579988+00:00','2026-11-22T16:51:41.704032+00:00','finished','{"commit":"abc1234","dirty":true,"hash":"f00","version":"0.1.0"}','abc1234');
INSERT INTO "run" VALUES(3,'compare/demo','{"alike":"same","arms":["main~1","main"],"cells":1,"delta":0.1,"min_coverage":0.95}',1,'2026-11-22T16:51:41.719820+00:00','2026-11-22T16:51:41.855852+00:00','finished','{"commit":"abc1234","dirty":true,"hash":"f00","version":"0.1.0"}','abc1234');
CREATE TABLE sample (
	outcome_id INTEGER NOT NULL, 
	metric TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	count INTEGER NOT NULL, 
	packed BLOB NOT NULL, 
	CONSTRAINT pk_sample PRIMARY KEY (outcome_id, metric), 
	CONSTRAINT fk_sample_outcome_id_status FOREIGN KEY(outcome_id, status) REFERENCES outcome (id, status), 
	CONSTRAINT ck_sample_status CHECK (status = 'ok'), 
	CONSTRAINT ck_sample_packed CHECK (count > 0 AND length(packed) = 8 * count)
);
INSERT INTO "sample" VALUES(1,'latency','ok',2,X'000000000000F83F000000000000E83F');
INSERT INTO "sample" VALUES(1,'kl','ok',4,X'000000000000D03F000000000000D03F000000000000D03F000000000000D03F');
INSERT INTO "sample" VALUES(1,'kv_logical','ok',1,X'000000000000B040');
INSERT INTO "sample" VALUES(1,'peak_memory','ok',1,X'000000008087C340');
INSERT INTO "sample" VALUES(1,'psnr','ok',2,X'9A99999999193E406666666666E63D40');
INSERT INTO "sample" VALUES(3,'latency','ok',2,X'0000000000000C40000000000000E83F');
INSERT INTO "sample" VALUES(3,'kl','ok',4,X'000000000000D03F000000000000D03F000000000000D03F000000000000D03F');
INSERT INTO "sample" VALUES(3,'kv_logical','ok',1,X'000000000000B040');
INSERT INTO "sample" VALUES(3,'peak_memory','ok',1,X'000000008087C340');
INSERT INTO "sample" VALUES(3,'psnr','ok',2,X'9A99999999193E406666666666E63D40');
INSERT INTO "sample" VALUES(4,'latency','ok',2,X'000000000000F83F000000000000E83F');
INSERT INTO "sample" VALUES(4,'kl','ok',4,X'000000000000D03F000000000000D03F000000000000D03F000000000000D03F');
INSERT INTO "sample" VALUES(4,'kv_logical','ok',1,X'000000000000B040');
INSERT INTO "sample" VALUES(4,'peak_memory','ok',1,X'000000008087C340');
INSERT INTO "sample" VALUES(4,'psnr','ok',2,X'9A99999999193E406666666666E63D40');
INSERT INTO "sample" VALUES(5,'latency','ok',2,X'000000000000F83F000000000000E83F');
INSERT INTO "sample" VALUES(5,'kl','ok',4,X'000000000000D03F000000000000D03F000000000000D03F000000000000D03F');
INSERT INTO "sample" VALUES(5,'kv_logical','ok',1,X'000000000000B040');
INSERT INTO "sample" VALUES(5,'peak_memory','ok',1,X'000000008087C340');
INSERT INTO "sample" VALUES(5,'psnr','ok',2,X'9A99999999193E406666666666E63D40');
INSERT INTO "sample" VALUES(6,'latency','ok',2,X'000000000000F83F000000000000E83F');
INSERT INTO "sample" VALUES(6,'kl','ok',4,X'000000000000D03F000000000000D03F000000000000D03F000000000000D03F');
INSERT INTO "sample" VALUES(6,'kv_logical','ok',1,X'000000000000B040');
INSERT INTO "sample" VALUES(6,'peak_memory','ok',1,X'000000008087C340');
INSERT INTO "sample" VALUES(6,'psnr','ok',2,X'9A99999999193E406666666666E63D40');
INSERT INTO "sample" VALUES(7,'latency','ok',2,X'000000000000F83F000000000000E83F');
INSERT INTO "sample" VALUES(7,'kl','ok',4,X'000000000000D03F000000000000D03F000000000000D03F000000000000D03F');
INSERT INTO "sample" VALUES(7,'kv_logical','ok',1,X'000000000000B040');
INSERT INTO "sample" VALUES(7,'peak_memory','ok',1,X'000000008087C340');
INSERT INTO "sample" VALUES(7,'psnr','ok',2,X'9A99999999193E406666666666E63D40');
CREATE TABLE trial (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	name TEXT, 
	CONSTRAINT pk_trial PRIMARY KEY (id), 
	CONSTRAINT uq_trial_run_id_name UNIQUE (run_id, name), 
	CONSTRAINT fk_trial_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "trial" VALUES(1,1,'tiny');
INSERT INTO "trial" VALUES(2,1,NULL);
INSERT INTO "trial" VALUES(3,2,NULL);
INSERT INTO "trial" VALUES(4,3,'A/A linear 1/4, pair 1, before');
INSERT INTO "trial" VALUES(5,3,'A/A linear 1/4, pair 1, after');
INSERT INTO "trial" VALUES(6,3,'A/A linear 1/4, pair 2, before');
INSERT INTO "trial" VALUES(7,3,'A/A linear 1/4, pair 2, after');
CREATE TABLE verdict (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	baseline_id INTEGER NOT NULL, 
	case_key VARCHAR(16) NOT NULL, 
	label TEXT NOT NULL, 
	metric TEXT NOT NULL, 
	verdict VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	"then" DOUBLE, 
	now DOUBLE, 
	change DOUBLE, 
	CONSTRAINT pk_verdict PRIMARY KEY (id), 
	CONSTRAINT fk_verdict_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_verdict_baseline_id FOREIGN KEY(baseline_id) REFERENCES baseline (id)
);
INSERT INTO "verdict" VALUES(1,3,1,'d331a8532217cf78','linear 1/4','latency','equivalent','within 10 %',1.0,1.0,1.0);
INSERT INTO "verdict" VALUES(2,3,1,'d331a8532217cf78','A/A linear 1/4','latency','equivalent','within 10 %',1.0,1.0,1.0);
CREATE INDEX ix_case_cell ON "case" (cell);
CREATE INDEX ix_case_model ON "case" (model);
CREATE INDEX ix_case_method ON "case" (method);
CREATE INDEX ix_run_plan ON run ("plan");
CREATE INDEX ix_outcome_trial_id ON outcome (trial_id);
CREATE INDEX ix_outcome_case_key ON outcome (case_key);
CREATE INDEX ix_outcome_skip_key ON outcome (skip_key);
CREATE INDEX ix_membership_outcome_id ON membership (outcome_id);
CREATE INDEX ix_verdict_run_id_baseline_id ON verdict (run_id, baseline_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('run',3);
COMMIT;
