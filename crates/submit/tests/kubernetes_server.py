"""A cluster of Kubernetes for tests: an API server, the Job controller and a kubelet, whose pods are local processes.

    python3 kubernetes_server.py FOLDER RONDE

It replays the behaviour that was recorded from a control plane of version 1.36: indexed Jobs with suspension, pod failure
policy, success policy, replacement after the end of a pod and changes of their size; pods with volumes, probes, preStop hooks
and a time to end; logs that are followed, and commands in pods over web sockets. What a server refuses is refused here too.
Pods run in mount and process namespaces, so it needs root. Each pod has an address of the loopback network.

It writes `config` (a kubeconfig) and, at each change, `state.json` to the folder, evicts a pod when there is a file
`evict-NAME`, and ends when its standard input does. While there is a file `fault-METHOD-KIND`, such as `fault-PATCH-jobs`,
requests of this kind fail: with the status code in the file, or with `cut` their connection ends before the answer, after
they have taken effect. A number after the code limits how many of them fail.

A file `rights` lists what the user may do, a verb and a kind on each line, such as `create pods/exec`; without the file, everything. With
the line `no reviews`, the user may not ask about it either. While there is a file `quota`, no pod is admitted, with the text in it as
the reason; with a file `restricted`, only pods that keep the Pod Security Standard of this name. A file `lose-NAME` cuts the node of
a pod off: its processes end, and the server sees the pod as it was.

The certificate is valid for 127.0.0.1 and for the name kubernetes.test. The file `server-name` has the name that the newest client has
announced in its handshake, and `host` the header of the newest request.

The variables of its own environment that begin with AWS_ or AZURE_ are in a
Secret `store`.
"""

import base64
import copy
import hashlib
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

FOLDER, RONDE = Path(sys.argv[1]), Path(sys.argv[2])
TOKEN = "test-token-" + uuid.uuid4().hex
IMAGES = {"registry.example.com/ronde:1"}
PROCESSORS = 16
# A server waits 10 s, then twice as long each time.
BACKOFF_S = 0.5
INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
KINDS = {"jobs": "Job", "pods": "Pod", "secrets": "Secret", "configmaps": "ConfigMap",
         "events": "Event"}
REVIEWS = "selfsubjectaccessreviews"
KILLED = b"unshare: sigprocmask unblock failed: Invalid argument"
LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")

try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None


class Refused(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


def invalid(message):
    return Refused(422, "Invalid", message)


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def check(kind, new):
    """Refuses what the validation of a server refuses."""
    name = new["metadata"].get("name", "")
    if not LABEL.match(name):
        raise invalid(f"metadata.name: Invalid value: {name!r}")
    if kubernetes_validate:
        try:
            kubernetes_validate.validate(new, "1.36", strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Refused(400, "BadRequest", f"strict decoding error: {error.message}") from error
    if kind == "configmaps":
        data = {**new.get("data", {}), **new.get("binaryData", {})}
        if any(not re.match(r"^[-._a-zA-Z0-9]{1,253}$", key) for key in data):
            raise invalid("data: a key has other letters")
        bytes_of = lambda value: len(value.encode())
        binary = sum(len(base64.b64decode(value)) for value in new.get("binaryData", {}).values())
        if sum(map(bytes_of, new.get("data", {}).values())) + binary > 1 << 20:
            raise invalid("[]: Too long: may not be more than 1048576 bytes")
    if kind == "jobs":
        check_job(new["spec"])
    if kind == "pods":
        check_pod(new["spec"])


def check_job(spec):
    check_pod(spec["template"]["spec"])
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        raise invalid("spec.completions: Required value: when completion mode is Indexed")
    if "successPolicy" in spec and spec.get("completionMode") != "Indexed":
        raise invalid("spec.successPolicy: Invalid value: requires indexed job mode")
    if spec["template"]["spec"].get("restartPolicy") != "Never":
        raise invalid("spec.template.spec.restartPolicy: only Never is valid with podFailurePolicy")
    if "podFailurePolicy" in spec and spec.get("podReplacementPolicy", "Failed") != "Failed":
        raise invalid("spec.podReplacementPolicy: only Failed is valid with podFailurePolicy")
    names = {container["name"] for container in spec["template"]["spec"]["containers"]}
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        codes = rule.get("onExitCodes")
        if codes:
            values = codes["values"]
            if values != sorted(set(values)) or (0 in values and codes["operator"] == "In"):
                raise invalid("spec.podFailurePolicy.rules.onExitCodes.values: must be ordered, unique and not 0")
            if codes.get("containerName", next(iter(names))) not in names:
                raise invalid("spec.podFailurePolicy.rules.onExitCodes.containerName: must be one of the containers")


def check_restricted(spec):
    """Returns what the Pod Security Standard "restricted" refuses (pod-security-admission of version 1.36)."""
    found, pod = [], spec.get("securityContext", {})
    containers = spec["containers"]
    of = lambda container, key: container.get("securityContext", {}).get(key, pod.get(key))
    if any(of(c, "allowPrivilegeEscalation") is not False for c in containers):
        found.append("allowPrivilegeEscalation != false")
    if any("ALL" not in (of(c, "capabilities") or {}).get("drop", []) for c in containers):
        found.append("unrestricted capabilities")
    if any(of(c, "runAsNonRoot") is not True for c in containers):
        found.append("runAsNonRoot != true")
    if any((of(c, "seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost") for c in containers):
        found.append("seccompProfile")
    if any(of(c, "runAsUser") == 0 for c in containers):
        found.append("runAsUser=0")
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    if any(not (set(volume) - {"name"}) <= allowed for volume in spec.get("volumes", [])):
        found.append("restricted volume types")
    # Not a part of the standard: the image has a named user, of which a kubelet does not know whether it is root.
    if any(not isinstance(of(c, "runAsUser"), int) for c in containers):
        found.append("image has non-numeric user (ronde), cannot verify user is non-root")
    return found


def check_pod(spec):
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                raise invalid(f"volumeMounts.name: Not found: {mount['name']!r}")
        resources = container.get("resources", {})
        for name, amount in resources.get("requests", {}).items():
            limit = resources.get("limits", {}).get(name, amount)
            if quantity(amount) > quantity(limit):
                raise invalid(f"resources.requests: must be less than or equal to {name} limit")


def quantity(text):
    units = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 1e3, "M": 1e6, "G": 1e9}
    found = re.match(r"^([0-9.]+)([a-zA-Z]*)$", str(text))
    if not found or (found[2] and found[2] not in units):
        raise invalid(f"quantities must match the regular expression: {text!r}")
    return float(found[1]) * units.get(found[2], 1)


def merge(value, patch):
    if not isinstance(patch, dict):
        return patch
    value = dict(value) if isinstance(value, dict) else {}
    for key, further in patch.items():
        if further is None:
            value.pop(key, None)
        else:
            value[key] = merge(value.get(key), further)
    return value


def has(thing, kind):
    conditions = thing.get("status", {}).get("conditions", [])
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def set_condition(thing, kind, reason="", message="", value="True"):
    conditions = thing.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [c for c in conditions if c["type"] != kind]
    conditions.append({
        "type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": now(),
    })


class Process:
    """The container of a pod."""

    def __init__(self, cluster, pod):
        self.pod, self.cluster = pod, cluster
        self.folder = FOLDER / "pods" / pod["metadata"]["uid"]
        self.folder.mkdir(parents=True)
        self.log = self.folder / "output.log"
        container = pod["spec"]["containers"][0]
        self.variables = self.environment(container)
        script = ["set -e", "mount -t tmpfs tmpfs /run"]
        for mount in container.get("volumeMounts", []):
            source = self.volume(mount["name"])
            at = mount["mountPath"]
            script += [f"mkdir -p {at}", f"mount --bind {source} {at}"]
        self.script = self.folder / "start.sh"
        self.script.write_text("\n".join([*script, 'cd /tmp', 'exec env -i "$@"']) + "\n")
        words = [f"{name}={value}" for name, value in self.variables.items()]
        with self.log.open("wb") as log:
            self.unshare = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc",
                 "--kill-child=SIGKILL", "sh", str(self.script), *words, *container["command"]],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.init = None

    def environment(self, container):
        pod = self.pod
        fields = {"status.podIP": pod["status"]["podIP"], "metadata.name": pod["metadata"]["name"]}
        variables = {"PATH": f"{RONDE.parent}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}
        index = pod["metadata"].get("annotations", {}).get(INDEX)
        if index is not None:
            variables["JOB_COMPLETION_INDEX"] = index
        for source in container.get("envFrom", []):
            secret = self.cluster.find("secrets", source["secretRef"]["name"])
            variables.update(secret_files(secret))
        for variable in container.get("env", []):
            value = variable.get("value")
            if value is None:
                value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            variables[variable["name"]] = value
        return variables

    def volume(self, name):
        volume = next(v for v in self.pod["spec"]["volumes"] if v["name"] == name)
        path = self.folder / "volumes" / name
        if "persistentVolumeClaim" in volume:
            path = FOLDER / "claims" / volume["persistentVolumeClaim"]["claimName"]
        path.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            write(path, secret_files(self.cluster.find("secrets", volume["secret"]["secretName"])))
        if "configMap" in volume:
            source = self.cluster.find("configmaps", volume["configMap"]["name"])
            data = dict(source.get("data", {}))
            data.update({k: base64.b64decode(v) for k, v in source.get("binaryData", {}).items()})
            items = volume["configMap"].get("items")
            write(path, {i["path"]: data[i["key"]] for i in items} if items else data)
        return path

    def pid(self):
        """The first process of the container; it is process 1 in its namespace."""
        if self.init is None:
            path = Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children")
            try:
                children = path.read_text().split()
            except OSError:
                children = []
            self.init = int(children[0]) if children else None
        return self.init

    def exec(self, command, **pipes):
        # A container runs only when its volumes are mounted: the script that mounts them has ended.
        for _ in range(500):
            try:
                if Path(f"/proc/{self.pid()}/comm").read_text().strip() != "sh":
                    break
            except OSError:
                pass
            time.sleep(0.02)
        words = [f"{name}={value}" for name, value in self.variables.items()]
        return subprocess.Popen(
            ["nsenter", "-t", str(self.pid()), "-m", "-p", "env", "-i", *words, *command],
            stdin=subprocess.DEVNULL, **pipes)

    def code(self):
        """The exit code of the container, which has ended."""
        code = self.unshare.returncode
        # Some versions of unshare end in this way when the container was killed.
        if code == 1 and self.log.read_bytes().rstrip().endswith(KILLED):
            return 137
        return 128 - code if code < 0 else code

    def kill(self, number):
        try:
            if self.pid() and self.unshare.poll() is None:
                os.kill(self.pid(), number)
        except ProcessLookupError:
            pass

    def end(self, grace):
        """What a kubelet does with a pod that is deleted."""
        container = self.pod["spec"]["containers"][0]
        deadline = time.monotonic() + grace
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec")
        if hook and grace > 0 and self.unshare.poll() is None and self.pid():
            running = self.exec(hook["command"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while running.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            running.kill()
        if grace > 0:
            self.kill(signal.SIGTERM)
        while self.unshare.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill(signal.SIGKILL)
        self.unshare.wait()


def secret_files(secret):
    data = {k: base64.b64decode(v) for k, v in secret.get("data", {}).items()}
    return {k: v.decode() for k, v in data.items()}


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


class Cluster:
    def __init__(self):
        self.lock = threading.RLock()
        self.objects = {kind: {} for kind in KINDS}
        self.processes = {}
        self.ending = set()
        self.lost = set()
        self.addresses = 0
        self.not_before = {}

    def find(self, kind, name):
        with self.lock:
            found = self.objects[kind].get(name)
        if found is None:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        return found

    def create(self, kind, new):
        with self.lock:
            metadata = new["metadata"]
            if "generateName" in metadata:
                metadata["name"] = metadata.pop("generateName")[:58] + uuid.uuid4().hex[:5]
            check(kind, new)
            name = metadata["name"]
            if name in self.objects[kind]:
                raise Refused(409, "AlreadyExists", f'{kind} "{name}" already exists')
            metadata.update({"uid": str(uuid.uuid4()), "creationTimestamp": now(), "namespace": "default"})
            if kind == "secrets":
                texts = new.pop("stringData", {})
                data = new.setdefault("data", {})
                data.update({k: base64.b64encode(v.encode()).decode() for k, v in texts.items()})
            if kind == "pods":
                new["status"] = {"phase": "Pending"}
            new.setdefault("status", {})
            self.objects[kind][name] = new
            return new

    def patch(self, kind, name, patch):
        with self.lock:
            old = self.find(kind, name)
            new = merge(copy.deepcopy(old), patch)
            if kind == "jobs":
                a, b = old["spec"], new["spec"]
                if a["template"] != b["template"]:
                    raise invalid("spec.template: field is immutable")
                if a["completions"] != b["completions"] and b["completions"] != b["parallelism"]:
                    raise invalid("spec.completions: field is immutable unless it equals parallelism")
            old.clear()
            old.update(new)
            return old

    def delete(self, kind, name, grace=None):
        with self.lock:
            found = self.find(kind, name)
            if kind == "pods":
                self.end_pod(found, grace)
                return found
            del self.objects[kind][name]
            uid = found["metadata"]["uid"]
            for further in KINDS:
                for other in list(self.objects[further].values()):
                    owners = other["metadata"].get("ownerReferences", [])
                    if any(owner["uid"] == uid for owner in owners):
                        self.delete(further, other["metadata"]["name"])
            return found

    def end_pod(self, pod, grace=None):
        name = pod["metadata"]["name"]
        if grace is None:
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        pod["metadata"].setdefault("deletionTimestamp", now())
        process = self.processes.get(name)
        if name in self.lost and grace != 0:
            return
        if process is None or name in self.lost:
            self.objects["pods"].pop(name, None)
        elif name not in self.ending or grace == 0:
            self.ending.add(name)
            threading.Thread(target=process.end, args=(grace,), daemon=True).start()

    def evict(self, name):
        with self.lock:
            pod = self.find("pods", name)
            set_condition(pod, "DisruptionTarget", "EvictionByEvictionAPI", "Eviction API: evicting")
            self.end_pod(pod)

    # The scheduler and the kubelet.

    def run_pods(self):
        for pod in list(self.objects["pods"].values()):
            name, phase = pod["metadata"]["name"], pod["status"]["phase"]
            if phase == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                self.start(pod)
            process = self.processes.get(name)
            if name in self.lost:
                continue
            if process and phase == "Running" and process.unshare.poll() is not None:
                code = process.code()
                pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
                state = {"terminated": {"exitCode": code, "finishedAt": now()}}
                if code and pod["spec"]["containers"][0].get("terminationMessagePolicy") == "FallbackToLogsOnError":
                    state["terminated"]["message"] = process.log.read_bytes()[-2048:].decode(errors="replace")
                pod["status"]["containerStatuses"] = [{"name": "ronde", "state": state}]
                set_condition(pod, "Ready", value="False")
            # The controller counts a pod of a Job before it is gone.
            over = pod["status"]["phase"] in ("Succeeded", "Failed")
            if over and "deletionTimestamp" in pod["metadata"]:
                owners = pod["metadata"].get("ownerReferences", [])
                owned = any(o.get("controller") and o["name"] in self.objects["jobs"] for o in owners)
                if not owned or pod.get("counted"):
                    self.objects["pods"].pop(name, None)

    def start(self, pod):
        container = pod["spec"]["containers"][0]
        if container["image"] not in IMAGES:
            waiting = {"reason": "ImagePullBackOff", "message": f"Back-off pulling image {container['image']}"}
            pod["status"]["containerStatuses"] = [{"name": "ronde", "state": {"waiting": waiting}}]
            return
        requested = quantity(container.get("resources", {}).get("requests", {}).get("cpu", 0))
        used = sum(quantity(p["spec"]["containers"][0].get("resources", {}).get("requests", {}).get("cpu", 0))
                   for p in self.objects["pods"].values() if p["status"]["phase"] == "Running")
        if used + requested > PROCESSORS:
            set_condition(pod, "PodScheduled", "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu", "False")
            return
        set_condition(pod, "PodScheduled")
        self.addresses += 1
        number = self.addresses
        address = f"127.{os.getpid() % 200 + 20}.{number // 250}.{number % 250 + 1}"
        pod["status"]["podIP"] = address
        name = pod["metadata"]["name"]
        self.processes[name] = Process(self, pod)
        pod["status"]["phase"] = "Running"
        pod["status"]["containerStatuses"] = [{"name": "ronde", "state": {"running": {"startedAt": now()}}}]
        threading.Thread(target=self.probe, args=(pod,), daemon=True).start()

    def probe(self, pod):
        container = pod["spec"]["containers"][0]
        process = self.processes[pod["metadata"]["name"]]
        probes = {kind: container.get(f"{kind}Probe") for kind in ("readiness", "liveness")}
        failures, due = 0, {kind: time.monotonic() + 1 for kind in probes}
        while process.unshare.poll() is None:
            for kind, probe in probes.items():
                if probe is None or time.monotonic() < due[kind] or process.pid() is None:
                    continue
                due[kind] = time.monotonic() + probe["periodSeconds"]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                try:
                    works = process.exec(probe["exec"]["command"], **quiet).wait(probe["timeoutSeconds"]) == 0
                except subprocess.TimeoutExpired:
                    works = False
                with self.lock:
                    if kind == "readiness":
                        set_condition(pod, "Ready", value="True" if works else "False")
                        set_condition(pod, "ContainersReady", value="True" if works else "False")
                    elif process.unshare.poll() is None:
                        failures = 0 if works else failures + 1
                        if failures >= probe["failureThreshold"]:
                            self.ending.add(pod["metadata"]["name"])
                            process.end(pod["spec"].get("terminationGracePeriodSeconds", 30))
            time.sleep(0.1)

    # The controller of Jobs.

    def run_jobs(self):
        for job in list(self.objects["jobs"].values()):
            name, spec = job["metadata"]["name"], job["spec"]
            pods = [p for p in self.objects["pods"].values()
                    if p["metadata"].get("labels", {}).get(JOB_NAME) == name]
            active = [p for p in pods if p["status"]["phase"] in ("Pending", "Running")]
            self.count(job, pods)
            finished = has(job, "Complete") or has(job, "Failed")
            status = job["status"]
            status["active"] = len(active)
            for pod in active:
                beyond = int(pod["metadata"]["annotations"][INDEX]) >= spec["completions"]
                if (finished or spec.get("suspend") or beyond or has(job, "SuccessCriteriaMet")) \
                        and "deletionTimestamp" not in pod["metadata"]:
                    self.end_pod(pod)
            if has(job, "SuccessCriteriaMet") and not active and not finished:
                set_condition(job, "Complete", "SuccessPolicy", "Matched rules at index 0")
            self.expire(job, finished)
            if finished or spec.get("suspend") or has(job, "SuccessCriteriaMet"):
                continue
            succeeded = status.setdefault("indexes", [])
            if all(index in succeeded for index in range(spec["completions"])):
                set_condition(job, "Complete", "CompletionsReached")
                continue
            # A pod that is being deleted keeps its index until it has ended.
            busy = {int(p["metadata"]["annotations"][INDEX]) for p in active}
            wanted = [i for i in range(spec["completions"]) if i not in busy and i not in succeeded]
            for index in wanted[:max(0, spec["parallelism"] - len(active))]:
                if time.monotonic() >= self.not_before.get((name, index), 0):
                    self.create_pod(job, index)

    def expire(self, job, finished):
        """Ends a Job at its deadline, and deletes one that has ended some time ago."""
        name, spec = job["metadata"]["name"], job["spec"]
        if spec.get("suspend"):
            return
        since = time.monotonic() - self.not_before.setdefault((job["metadata"]["uid"], "start"), time.monotonic())
        if not finished and since > spec.get("activeDeadlineSeconds", 1e9):
            set_condition(job, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
        if finished and "ttlSecondsAfterFinished" in spec:
            ended = self.not_before.setdefault((job["metadata"]["uid"], "end"), time.monotonic())
            if time.monotonic() - ended >= spec["ttlSecondsAfterFinished"] and name in self.objects["jobs"]:
                self.delete("jobs", name)

    def count(self, job, pods):
        name, spec, status = job["metadata"]["name"], job["spec"], job["status"]
        for pod in pods:
            if pod["status"]["phase"] not in ("Succeeded", "Failed") or pod.get("counted"):
                continue
            pod["counted"] = True
            index = int(pod["metadata"]["annotations"][INDEX])
            if pod["status"]["phase"] == "Succeeded":
                status.setdefault("indexes", []).append(index)
                rules = spec.get("successPolicy", {}).get("rules", [])
                if any(len(status["indexes"]) >= rule["succeededCount"] for rule in rules):
                    set_condition(job, "SuccessCriteriaMet", "SuccessPolicy")
                continue
            code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
            rules = spec.get("podFailurePolicy", {}).get("rules", [])
            rule = next((number for number, rule in enumerate(rules) if self.matches(rule, pod, code)), None)
            action = rules[rule]["action"] if rule is not None else "Count"
            if action == "FailJob":
                message = (f"Container ronde for pod default/{pod['metadata']['name']} failed with exit code {code} "
                           f"matching FailJob rule at index {rule}")
                set_condition(job, "Failed", "PodFailurePolicy", message)
            elif action == "Count":
                status["failed"] = status.get("failed", 0) + 1
                wait = BACKOFF_S * 2 ** min(status["failed"] - 1, 6)
                self.not_before[(name, index)] = time.monotonic() + wait
                if status["failed"] > spec.get("backoffLimit", 6):
                    set_condition(job, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")

    @staticmethod
    def matches(rule, pod, code):
        codes = rule.get("onExitCodes")
        if codes:
            return (code in codes["values"]) == (codes["operator"] == "In")
        return any(has(pod, condition["type"]) for condition in rule.get("onPodConditions", []))

    def create_pod(self, job, index):
        template = copy.deepcopy(job["spec"]["template"])
        name = job["metadata"]["name"]
        metadata = template.setdefault("metadata", {})
        metadata["name"] = f"{name}-{index}-{uuid.uuid4().hex[:5]}"
        metadata.setdefault("labels", {}).update({JOB_NAME: name, INDEX: str(index)})
        metadata["annotations"] = {INDEX: str(index)}
        metadata["ownerReferences"] = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True},
        ]
        template["spec"]["hostname"] = f"{name}-{index}"
        template.update({"apiVersion": "v1", "kind": "Pod"})
        refused = ""
        if (FOLDER / "quota").exists():
            refused = (FOLDER / "quota").read_text()
        elif (FOLDER / "restricted").exists() and check_restricted(template["spec"]):
            refused = f'violates PodSecurity "restricted:latest": {", ".join(check_restricted(template["spec"]))}'
        if refused:
            return self.warn("Job", job, "FailedCreate", f'Error creating: pods "{name}-{index}-" is forbidden: {refused}')
        self.create("pods", template)

    def warn(self, kind, thing, reason, message):
        name = f"{thing['metadata']['name']}.{reason.lower()}"
        event = self.objects["events"].setdefault(name, {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"kind": kind, "name": thing["metadata"]["name"], "namespace": "default"},
            "reason": reason, "type": "Warning", "count": 0, "eventTime": None, "source": {"component": "job-controller"},
        })
        event.update({"message": message, "count": event["count"] + 1, "lastTimestamp": now()})

    def run(self):
        last = None
        while True:
            with self.lock:
                # A test evicts a pod by a file with its name.
                for file in FOLDER.glob("evict-*"):
                    file.unlink()
                    if file.name.removeprefix("evict-") in self.objects["pods"]:
                        self.evict(file.name.removeprefix("evict-"))
                for file in FOLDER.glob("lose-*"):
                    file.unlink()
                    name = file.name.removeprefix("lose-")
                    self.lost.add(name)
                    self.processes[name].kill(signal.SIGKILL)
                self.run_pods()
                self.run_jobs()
                pods = [{
                    "name": name, "index": pod["metadata"].get("annotations", {}).get(INDEX),
                    "phase": pod["status"]["phase"], "ready": has(pod, "Ready"),
                    "pid": self.processes[name].pid() if name in self.processes else None,
                } for name, pod in self.objects["pods"].items()]
                kept = {kind: sorted(self.objects[kind]) for kind in KINDS if kind != "pods"}
                text = json.dumps({"pods": pods, "validated": kubernetes_validate is not None, **kept})
            if text != last:
                (FOLDER / "state.json.new").write_text(text)
                (FOLDER / "state.json.new").rename(FOLDER / "state.json")
                last = text
            time.sleep(0.05)


CLUSTER = Cluster()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_request(self):
        (FOLDER / "host").write_text(self.headers.get("Host", ""))
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        try:
            is_cut = self.fault(url) == "cut"
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            self.route(unquote(url.path).strip("/").split("/"), query, body, is_cut)
        except Refused as refused:
            self.answer(refused.code, {
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": refused.message,
                "reason": refused.reason, "code": refused.code,
            })
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request

    def fault(self, url):
        """Refuses a request that is to fail, or returns `cut`."""
        kinds = [word for word in url.path.split("/") if word in KINDS]
        path = FOLDER / f"fault-{self.command}-{kinds[0] if kinds else ''}"
        with CLUSTER.lock:
            try:
                code, *left = path.read_text().split()
            except (OSError, ValueError):
                return None
            if left:
                if int(left[0]) <= 0:
                    return None
                path.write_text(f"{code} {int(left[0]) - 1}")
        if code != "cut":
            raise Refused(int(code), "Fault", "this request is to fail")
        return code

    def route(self, path, query, body, is_cut):
        known = discovery("/".join(path))
        if known is not None and self.command == "GET":
            return self.answer(200, known)
        path = path[2:] if path[0] == "api" else path[3:]
        if path == [REVIEWS] and self.command == "POST":
            return self.review(body)
        if len(path) < 3 or path[0] != "namespaces" or path[2] not in KINDS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if path[1] == "absent":
            raise Refused(404, "NotFound", 'namespaces "absent" not found')
        if path[1] == "ending":
            group = {"jobs": "jobs.batch"}.get(path[2], path[2])
            raise Refused(403, "Forbidden", f'{group} "{body["metadata"]["name"]}" is forbidden: unable to create new content in '
                          "namespace ending because it is being terminated")
        if path[1] != "default":
            raise Refused(403, "Forbidden", f'{path[2]} is forbidden: User "test" cannot use it in "{path[1]}"')
        kind, name, part = path[2], (path[3:] or [None])[0], (path[4:] or [None])[0]
        for verb, of in self.needed(kind, name, part):
            if not may(verb, of):
                raise forbidden(verb, of)
        if part == "log":
            return self.stream_log(name, query)
        if part == "exec":
            return self.run_in_pod(name, query)
        if part == "eviction":
            CLUSTER.evict(name)
            return self.answer(201, {"kind": "Status", "status": "Success"})
        with CLUSTER.lock:
            answer = copy.deepcopy(self.change(kind, name, query, body))
        if is_cut:
            raise ConnectionResetError
        code = 201 if self.command == "POST" else 200
        return self.answer(code, answer)

    def needed(self, kind, name, part):
        """Returns the rights that a request needs, as a server of version 1.36 does."""
        if part == "exec":
            return [("get", "pods/exec"), ("create", "pods/exec")]
        if part:
            return [("get" if self.command == "GET" else "create", f"{kind}/{part}")]
        verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "GET": "get" if name else "list"}
        return [(verbs[self.command], kind)]

    def review(self, body):
        if not may("create", REVIEWS):
            raise forbidden("create", REVIEWS)
        asked = body["spec"]["resourceAttributes"]
        body["status"] = {"allowed": may(asked["verb"], asked["resource"])}
        self.answer(201, body)

    def change(self, kind, name, query, body):
        if self.command == "POST":
            return CLUSTER.create(kind, body)
        if self.command == "PATCH":
            return CLUSTER.patch(kind, name, body)
        if self.command == "DELETE":
            return CLUSTER.delete(kind, name, (body or {}).get("gracePeriodSeconds"))
        if name:
            return CLUSTER.find(kind, name)
        found = list(CLUSTER.objects[kind].values())
        for term in filter(None, query.get("labelSelector", [""])[0].split(",")):
            key, value = term.split("=", 1)
            found = [o for o in found if o["metadata"].get("labels", {}).get(key) == value]
        for term in filter(None, query.get("fieldSelector", [""])[0].split(",")):
            key, value = term.split("=", 1)
            found = [o for o in found if o["involvedObject"].get(key.removeprefix("involvedObject.")) == value]
        return {"kind": KINDS[kind] + "List", "apiVersion": "batch/v1" if kind == "jobs" else "v1", "metadata": {},
                "items": found}

    def stream_log(self, name, query):
        CLUSTER.find("pods", name)
        process = CLUSTER.processes.get(name)
        if process is None:
            raise Refused(400, "BadRequest", f'container "ronde" in pod "{name}" is waiting to start')
        follow = query.get("follow") == ["true"]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with process.log.open("rb") as log:
            while True:
                over = not follow or process.unshare.poll() is not None
                data = log.read()
                if data:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                if over:
                    break
                time.sleep(0.05)
        self.wfile.write(b"0\r\n\r\n")

    def run_in_pod(self, name, query):
        pod = CLUSTER.find("pods", name)
        process = CLUSTER.processes.get(name)
        if name in CLUSTER.lost:
            raise Refused(500, "InternalError", "error dialing backend: dial tcp 10.0.0.9:10250: no route to host")
        if process is None or pod["status"]["phase"] != "Running":
            raise Refused(500, "InternalError", "cannot exec into a container in a completed pod")
        offered = [p.strip() for p in self.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        protocol = next((p for p in ("v5.channel.k8s.io", "v4.channel.k8s.io") if p in offered), None)
        key = self.headers.get("Sec-WebSocket-Key", "")
        if protocol is None or self.headers.get("Sec-WebSocket-Version") != "13" or len(base64.b64decode(key)) != 16:
            raise Refused(400, "BadRequest", "you must specify a protocol of channels and a key")
        digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
        self.send_header("Sec-WebSocket-Protocol", protocol)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        running = process.exec(query["command"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lock = threading.Lock()

        def send(channel, data):
            payload = bytes([channel]) + data
            size = len(payload)
            head = bytes([0x82]) + (bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size))
            with lock:
                self.connection.sendall(head + payload)

        def copy_from(channel, pipe):
            while data := os.read(pipe.fileno(), 16_000):
                send(channel, data)

        threads = [threading.Thread(target=copy_from, args=pair) for pair in ((1, running.stdout), (2, running.stderr))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = running.wait()
        status = {"metadata": {}, "status": "Success"}
        if code:
            code = 128 - code if code < 0 else code
            status = {
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": f"command terminated with non-zero exit code: exit status {code}",
                "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
            }
        send(3, json.dumps(status).encode())
        with lock:
            self.connection.sendall(bytes([0x88, 2]) + struct.pack(">H", 1000))
        self.connection.shutdown(socket.SHUT_WR)


def may(verb, kind):
    """Whether the user has a right, by the file `rights`."""
    try:
        rights = (FOLDER / "rights").read_text().splitlines()
    except OSError:
        return True
    if kind == REVIEWS:
        return "no reviews" not in rights
    return f"{verb} {kind}" in rights


def forbidden(verb, kind):
    group = {"jobs": "batch", REVIEWS: "authorization.k8s.io"}.get(kind, "")
    where = "at the cluster scope" if kind == REVIEWS else 'in the namespace "default"'
    return Refused(403, "Forbidden", f'{kind.split("/")[0]} is forbidden: User "test" cannot {verb} resource "{kind}" in API '
                                     f'group "{group}" {where}')


def discovery(path):
    """The lists of groups and kinds, for kubectl."""
    def resources(group, names):
        verbs = ["get", "list", "create", "delete", "patch"]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": [
            {"name": n, "singularName": n[:-1], "namespaced": True, "kind": KINDS[n], "verbs": verbs} for n in names]}

    version = {"groupVersion": "batch/v1", "version": "v1"}
    return {
        "api": {"kind": "APIVersions", "versions": ["v1"]},
        "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
            {"name": "batch", "versions": [version], "preferredVersion": version}]},
        "api/v1": resources("v1", [n for n in KINDS if n != "jobs"]),
        "apis/batch/v1": resources("batch/v1", ["jobs"]),
        "version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
    }.get(path)


def certificates():
    """Makes an authority and a certificate for this machine."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=FOLDER, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority")
    openssl("req", *key[:-2], "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=kubernetes")
    (FOLDER / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:kubernetes.test")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", "server.pem", "-extfile", "names")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FOLDER / "server.pem", FOLDER / "server.key")

    def note(_socket, name, _context):
        (FOLDER / "server-name").write_text(name or "")

    context.sni_callback = note
    return context


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # The handshake is a part of the first read of a connection's own thread.
    server.socket = certificates().wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    address = f"https://127.0.0.1:{server.server_address[1]}"
    (FOLDER / "config").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": address, "certificate-authority": "ca.pem"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me", "namespace": "default"}},
                     {"name": "other", "context": {"cluster": "test", "user": "other"}}],
        "users": [{"name": "me", "user": {"token": TOKEN}}, {"name": "other", "user": {"token": "expired"}}],
    }, indent=1))
    store = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "AZURE_"))}
    CLUSTER.create("secrets", {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "type": "Opaque", "stringData": store,
    })
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=CLUSTER.run, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    for process in CLUSTER.processes.values():
        process.kill(signal.SIGKILL)
        process.unshare.kill()


main()
