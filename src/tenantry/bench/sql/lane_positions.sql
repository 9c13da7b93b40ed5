select pipeline, tenant_id, sequence from tenantry.pipeline_lanes where pipeline = any(%(pipelines)s) and channel = 'events'
