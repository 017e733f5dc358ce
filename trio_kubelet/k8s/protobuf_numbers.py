"""The numbers of the fields of a pod, and of all that it contains, in the API's protobuf.

A row has the name of a class, and its fields by their names in JSON. A name with a capital is a
message that JSON does not show: its fields stand in the object itself. Three rows have no class,
because they are only such messages. A test compares the rows with the table of facts.
"""

from collections.abc import Mapping

FIELD_NUMBERS: Mapping[str, str] = {
    "AWSElasticBlockStoreVolumeSource": "volumeID=1 fsType=2 partition=3 readOnly=4",
    "Affinity": "nodeAffinity=1 podAffinity=2 podAntiAffinity=3",
    "AppArmorProfile": "type=1 localhostProfile=2",
    "AzureDiskVolumeSource": "diskName=1 diskURI=2 cachingMode=3 fsType=4 readOnly=5 kind=6",
    "AzureFileVolumeSource": "secretName=1 shareName=2 readOnly=3",
    "CSIVolumeSource": "driver=1 readOnly=2 fsType=3 volumeAttributes=4 nodePublishSecretRef=5",
    "Capabilities": "add=1 drop=2",
    "CephFSVolumeSource": "monitors=1 path=2 user=3 secretFile=4 secretRef=5 readOnly=6",
    "CinderVolumeSource": "volumeID=1 fsType=2 readOnly=3 secretRef=4",
    "ClusterTrustBundleProjection": "name=1 signerName=2 labelSelector=3 path=4 optional=5",
    "ConfigMapEnvSource": "LocalObjectReference=1 optional=2",
    "ConfigMapKeySelector": "LocalObjectReference=1 key=2 optional=3",
    "ConfigMapProjection": "LocalObjectReference=1 items=2 optional=4",
    "ConfigMapVolumeSource": "LocalObjectReference=1 items=2 defaultMode=3 optional=4",
    "Container": """
        name=1 image=2 command=3 args=4 workingDir=5 ports=6 env=7 resources=8 volumeMounts=9
        livenessProbe=10 readinessProbe=11 lifecycle=12 terminationMessagePath=13
        imagePullPolicy=14 securityContext=15 stdin=16 stdinOnce=17 tty=18 envFrom=19
        terminationMessagePolicy=20 volumeDevices=21 startupProbe=22 resizePolicy=23
        restartPolicy=24 restartPolicyRules=25""",
    "ContainerExtendedResourceRequest": "containerName=1 resourceName=2 requestName=3",
    "ContainerPort": "name=1 hostPort=2 containerPort=3 protocol=4 hostIP=5",
    "ContainerResizePolicy": "resourceName=1 restartPolicy=2",
    "ContainerRestartRule": "action=1 exitCodes=2",
    "ContainerRestartRuleOnExitCodes": "operator=1 values=2",
    "ContainerState": "waiting=1 running=2 terminated=3",
    "ContainerStateRunning": "startedAt=1",
    "ContainerStateTerminated": """
        exitCode=1 signal=2 reason=3 message=4 startedAt=5 finishedAt=6 containerID=7""",
    "ContainerStateWaiting": "reason=1 message=2",
    "ContainerStatus": """
        name=1 state=2 lastState=3 ready=4 restartCount=5 image=6 imageID=7 containerID=8
        started=9 allocatedResources=10 resources=11 volumeMounts=12 user=13
        allocatedResourcesStatus=14 stopSignal=15""",
    "ContainerUser": "linux=1",
    "DownwardAPIProjection": "items=1",
    "DownwardAPIVolumeFile": "path=1 fieldRef=2 resourceFieldRef=3 mode=4",
    "DownwardAPIVolumeSource": "items=1 defaultMode=2",
    "EmptyDirVolumeSource": "medium=1 sizeLimit=2",
    "EnvFromSource": "prefix=1 configMapRef=2 secretRef=3",
    "EnvVar": "name=1 value=2 valueFrom=3",
    "EnvVarSource": "fieldRef=1 resourceFieldRef=2 configMapKeyRef=3 secretKeyRef=4 fileKeyRef=5",
    "EphemeralContainer": "EphemeralContainerCommon=1 targetContainerName=2",
    "EphemeralContainerCommon": """
        name=1 image=2 command=3 args=4 workingDir=5 ports=6 env=7 resources=8 volumeMounts=9
        livenessProbe=10 readinessProbe=11 lifecycle=12 terminationMessagePath=13
        imagePullPolicy=14 securityContext=15 stdin=16 stdinOnce=17 tty=18 envFrom=19
        terminationMessagePolicy=20 volumeDevices=21 startupProbe=22 resizePolicy=23
        restartPolicy=24 restartPolicyRules=25""",
    "EphemeralVolumeSource": "volumeClaimTemplate=1",
    "ExecAction": "command=1",
    "FCVolumeSource": "targetWWNs=1 lun=2 fsType=3 readOnly=4 wwids=5",
    "FileKeySelector": "volumeName=1 path=2 key=3 optional=4",
    "FlexVolumeSource": "driver=1 fsType=2 secretRef=3 readOnly=4 options=5",
    "FlockerVolumeSource": "datasetName=1 datasetUUID=2",
    "GCEPersistentDiskVolumeSource": "pdName=1 fsType=2 partition=3 readOnly=4",
    "GRPCAction": "port=1 service=2",
    "GitRepoVolumeSource": "repository=1 revision=2 directory=3",
    "GlusterfsVolumeSource": "endpoints=1 path=2 readOnly=3",
    "HTTPGetAction": "path=1 port=2 host=3 scheme=4 httpHeaders=5",
    "HTTPHeader": "name=1 value=2",
    "HostAlias": "ip=1 hostnames=2",
    "HostIP": "ip=1",
    "HostPathVolumeSource": "path=1 type=2",
    "ISCSIVolumeSource": """
        targetPortal=1 iqn=2 lun=3 iscsiInterface=4 fsType=5 readOnly=6 portals=7
        chapAuthDiscovery=8 secretRef=10 chapAuthSession=11 initiatorName=12""",
    "ImageVolumeSource": "reference=1 pullPolicy=2",
    "ImageVolumeStatus": "imageRef=1",
    "KeyToPath": "key=1 path=2 mode=3",
    "LabelSelector": "matchLabels=1 matchExpressions=2",
    "LabelSelectorRequirement": "key=1 operator=2 values=3",
    "Lifecycle": "postStart=1 preStop=2 stopSignal=3",
    "LifecycleHandler": "exec=1 httpGet=2 tcpSocket=3 sleep=4",
    "LinuxContainerUser": "uid=1 gid=2 supplementalGroups=3",
    "LocalObjectReference": "name=1",
    "ManagedFieldsEntry": """
        manager=1 operation=2 apiVersion=3 time=4 fieldsType=6 fieldsV1=7 subresource=8""",
    "NFSVolumeSource": "server=1 path=2 readOnly=3",
    "NodeAffinity": """
        requiredDuringSchedulingIgnoredDuringExecution=1
        preferredDuringSchedulingIgnoredDuringExecution=2""",
    "NodeAllocatableResourceClaimStatus": "resourceClaimName=1 containers=2 resources=3",
    "NodeSelector": "nodeSelectorTerms=1",
    "NodeSelectorRequirement": "key=1 operator=2 values=3",
    "NodeSelectorTerm": "matchExpressions=1 matchFields=2",
    "ObjectFieldSelector": "apiVersion=1 fieldPath=2",
    "ObjectMeta": """
        name=1 generateName=2 namespace=3 selfLink=4 uid=5 resourceVersion=6 generation=7
        creationTimestamp=8 deletionTimestamp=9 deletionGracePeriodSeconds=10 labels=11
        annotations=12 ownerReferences=13 finalizers=14 managedFields=17""",
    "OwnerReference": "kind=1 name=3 uid=4 apiVersion=5 controller=6 blockOwnerDeletion=7",
    "PersistentVolumeClaimSpec": """
        accessModes=1 resources=2 volumeName=3 selector=4 storageClassName=5 volumeMode=6
        dataSource=7 dataSourceRef=8 volumeAttributesClassName=9""",
    "PersistentVolumeClaimTemplate": "metadata=1 spec=2",
    "PersistentVolumeClaimVolumeSource": "claimName=1 readOnly=2",
    "PhotonPersistentDiskVolumeSource": "pdID=1 fsType=2",
    "Pod": "metadata=1 spec=2 status=3",
    "PodAffinity": """
        requiredDuringSchedulingIgnoredDuringExecution=1
        preferredDuringSchedulingIgnoredDuringExecution=2""",
    "PodAffinityTerm": """
        labelSelector=1 namespaces=2 topologyKey=3 namespaceSelector=4 matchLabelKeys=5
        mismatchLabelKeys=6""",
    "PodAntiAffinity": """
        requiredDuringSchedulingIgnoredDuringExecution=1
        preferredDuringSchedulingIgnoredDuringExecution=2""",
    "PodCertificateProjection": """
        signerName=1 keyType=2 maxExpirationSeconds=3 credentialBundlePath=4 keyPath=5
        certificateChainPath=6 userAnnotations=7""",
    "PodCondition": """
        type=1 status=2 lastProbeTime=3 lastTransitionTime=4 reason=5 message=6
        observedGeneration=7""",
    "PodDNSConfig": "nameservers=1 searches=2 options=3",
    "PodDNSConfigOption": "name=1 value=2",
    "PodExtendedResourceClaimStatus": "requestMappings=1 resourceClaimName=2",
    "PodIP": "ip=1",
    "PodOS": "name=1",
    "PodReadinessGate": "conditionType=1",
    "PodResourceClaim": "name=1 resourceClaimName=3 resourceClaimTemplateName=4",
    "PodResourceClaimStatus": "name=1 resourceClaimName=2",
    "PodSchedulingGate": "name=1",
    "PodSchedulingGroup": "podGroupName=1",
    "PodSecurityContext": """
        seLinuxOptions=1 runAsUser=2 runAsNonRoot=3 supplementalGroups=4 fsGroup=5 runAsGroup=6
        sysctls=7 windowsOptions=8 fsGroupChangePolicy=9 seccompProfile=10 appArmorProfile=11
        supplementalGroupsPolicy=12 seLinuxChangePolicy=13""",
    "PodSpec": """
        volumes=1 containers=2 restartPolicy=3 terminationGracePeriodSeconds=4
        activeDeadlineSeconds=5 dnsPolicy=6 nodeSelector=7 serviceAccountName=8 serviceAccount=9
        nodeName=10 hostNetwork=11 hostPID=12 hostIPC=13 securityContext=14 imagePullSecrets=15
        hostname=16 subdomain=17 affinity=18 schedulerName=19 initContainers=20
        automountServiceAccountToken=21 tolerations=22 hostAliases=23 priorityClassName=24
        priority=25 dnsConfig=26 shareProcessNamespace=27 readinessGates=28 runtimeClassName=29
        enableServiceLinks=30 preemptionPolicy=31 overhead=32 topologySpreadConstraints=33
        ephemeralContainers=34 setHostnameAsFQDN=35 os=36 hostUsers=37 schedulingGates=38
        resourceClaims=39 resources=40 hostnameOverride=41 schedulingGroup=43""",
    "PodStatus": """
        phase=1 conditions=2 message=3 reason=4 hostIP=5 podIP=6 startTime=7 containerStatuses=8
        qosClass=9 initContainerStatuses=10 nominatedNodeName=11 podIPs=12
        ephemeralContainerStatuses=13 resize=14 resourceClaimStatuses=15 hostIPs=16
        observedGeneration=17 extendedResourceClaimStatus=18 allocatedResources=19 resources=20
        nodeAllocatableResourceClaimStatuses=21""",
    "PortworxVolumeSource": "volumeID=1 fsType=2 readOnly=3",
    "PreferredSchedulingTerm": "weight=1 preference=2",
    "Probe": """
        ProbeHandler=1 initialDelaySeconds=2 timeoutSeconds=3 periodSeconds=4 successThreshold=5
        failureThreshold=6 terminationGracePeriodSeconds=7""",
    "ProbeHandler": "exec=1 httpGet=2 tcpSocket=3 grpc=4",
    "ProjectedVolumeSource": "sources=1 defaultMode=2",
    "QuobyteVolumeSource": "registry=1 volume=2 readOnly=3 user=4 group=5 tenant=6",
    "RBDVolumeSource": "monitors=1 image=2 fsType=3 pool=4 user=5 keyring=6 secretRef=7 readOnly=8",
    "ResourceClaim": "name=1 request=2",
    "ResourceFieldSelector": "containerName=1 resource=2 divisor=3",
    "ResourceHealth": "resourceID=1 health=2 message=6",
    "ResourceRequirements": "limits=1 requests=2 claims=3",
    "ResourceStatus": "name=1 resources=2",
    "SELinuxOptions": "user=1 role=2 type=3 level=4",
    "ScaleIOVolumeSource": """
        gateway=1 system=2 secretRef=3 sslEnabled=4 protectionDomain=5 storagePool=6
        storageMode=7 volumeName=8 fsType=9 readOnly=10""",
    "SeccompProfile": "type=1 localhostProfile=2",
    "SecretEnvSource": "LocalObjectReference=1 optional=2",
    "SecretKeySelector": "LocalObjectReference=1 key=2 optional=3",
    "SecretProjection": "LocalObjectReference=1 items=2 optional=4",
    "SecretVolumeSource": "secretName=1 items=2 defaultMode=3 optional=4",
    "SecurityContext": """
        capabilities=1 privileged=2 seLinuxOptions=3 runAsUser=4 runAsNonRoot=5
        readOnlyRootFilesystem=6 allowPrivilegeEscalation=7 runAsGroup=8 procMount=9
        windowsOptions=10 seccompProfile=11 appArmorProfile=12""",
    "ServiceAccountTokenProjection": "audience=1 expirationSeconds=2 path=3",
    "SleepAction": "seconds=1",
    "StorageOSVolumeSource": "volumeName=1 volumeNamespace=2 fsType=3 readOnly=4 secretRef=5",
    "Sysctl": "name=1 value=2",
    "TCPSocketAction": "port=1 host=2",
    "Toleration": "key=1 operator=2 value=3 effect=4 tolerationSeconds=5",
    "TopologySpreadConstraint": """
        maxSkew=1 topologyKey=2 whenUnsatisfiable=3 labelSelector=4 minDomains=5
        nodeAffinityPolicy=6 nodeTaintsPolicy=7 matchLabelKeys=8""",
    "TypedLocalObjectReference": "apiGroup=1 kind=2 name=3",
    "TypedObjectReference": "apiGroup=1 kind=2 name=3 namespace=4",
    "Volume": "name=1 VolumeSource=2",
    "VolumeDevice": "name=1 devicePath=2",
    "VolumeMount": """
        name=1 readOnly=2 mountPath=3 subPath=4 mountPropagation=5 subPathExpr=6
        recursiveReadOnly=7""",
    "VolumeMountStatus": "name=1 mountPath=2 readOnly=3 recursiveReadOnly=4 volumeStatus=5",
    "VolumeProjection": """
        secret=1 downwardAPI=2 configMap=3 serviceAccountToken=4 clusterTrustBundle=5
        podCertificate=6""",
    "VolumeResourceRequirements": "limits=1 requests=2",
    "VolumeSource": """
        hostPath=1 emptyDir=2 gcePersistentDisk=3 awsElasticBlockStore=4 gitRepo=5 secret=6
        nfs=7 iscsi=8 glusterfs=9 persistentVolumeClaim=10 rbd=11 flexVolume=12 cinder=13
        cephfs=14 flocker=15 downwardAPI=16 fc=17 azureFile=18 configMap=19 vsphereVolume=20
        quobyte=21 azureDisk=22 photonPersistentDisk=23 portworxVolume=24 scaleIO=25
        projected=26 storageos=27 csi=28 ephemeral=29 image=30""",
    "VolumeStatus": "image=1",
    "VsphereVirtualDiskVolumeSource": "volumePath=1 fsType=2 storagePolicyName=3 storagePolicyID=4",
    "WeightedPodAffinityTerm": "weight=1 podAffinityTerm=2",
    "WindowsSecurityContextOptions": """
        gmsaCredentialSpecName=1 gmsaCredentialSpec=2 runAsUserName=3 hostProcess=4""",
}
